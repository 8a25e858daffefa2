"""Constraints of tokens: logits of other tokens become -inf."""

from collections.abc import Sequence

import torch
from transformers import LogitsProcessor

from worker.engine.requests import TokenConstraint
from worker.engine.tokens.stopping import RowTracker


def allow_only(scores: torch.Tensor, constraint: TokenConstraint, generated: Sequence[int]) -> None:
    """Rule out all tokens that a constraint does not allow, in place.

    Args:
        scores: float32 [vocabulary].
        generated: the sample's tokens so far.
    """
    mask = constraint.mask(generated)[: scores.shape[-1]].to(scores.device)
    scores.masked_fill_(~mask, -torch.inf)


class Constrained(LogitsProcessor):
    """Applies the constraints of a batch's rows, between the penalties and the sampler.

    Args:
        constraints: of each row; None allows every token.
        tracker: knows the tokens of each row and whether the row has ended.
    """

    def __init__(self, constraints: Sequence[TokenConstraint | None], tracker: RowTracker) -> None:
        self._constraints = constraints
        self._tracker = tracker

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        # float32 and transformers' own copy: it may be written to
        for row, constraint in enumerate(self._constraints):
            if constraint is not None and self._tracker.ended_at[row] is None:
                allow_only(scores[row], constraint, self._tracker.tokens[row])
        return scores
