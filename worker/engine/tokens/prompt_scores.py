"""Log probabilities of a prompt's own tokens, chunk by chunk, and of tokens that may follow it."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from actograph.contract.errors import ActographError, CaptureFailed, InterventionFailed
from worker.engine.messages import Request, TokenLogprobs
from worker.engine.model.host_memory import to_device

#: bytes of logits in memory at once to score prompts
_PIECE_BYTES = 128 << 20
#: logits of a token, and float32 copies of them
_COPIES = 4


def scored_tokens(vocabulary: int) -> int:
    """Most tokens of a pass whose logits are all computed."""
    return max(1, _PIECE_BYTES // (4 * _COPIES * vocabulary))


class PromptScore:
    """Scores of one prompt."""

    def __init__(self, request: Request) -> None:
        self._request = request
        further = () if request.scored_next is None else (request.scored_next,)
        self._ids = (*request.prompt_ids, *further)
        self._found: list[TokenLogprobs | None] = [None]
        self._bad = False

    def take(self, logits: Tensor, start: int) -> None:
        """Take the logits of consecutive prompt tokens from `start` on, [tokens, vocabulary]."""
        ids = self._ids[start + 1 : start + 1 + len(logits)]  # of the tokens after those
        if not ids:
            return
        scored: list[TokenLogprobs | None] = []
        scores = logits[: len(ids)].to(torch.float32)
        total = scores.logsumexp(-1, keepdim=True)
        own = scores.gather(-1, to_device(np.array(ids), scores.device)[:, None]) - total
        top, top_ids = scores.topk(min(self._request.top_logprobs or 0, scores.shape[-1]), dim=-1)
        # float64 holds token ids and float32 exactly, so one transfer takes all
        found = torch.cat([one.to(torch.float64) for one in (own, top - total, top_ids)], -1).tolist()
        count = top.shape[-1]
        for token, (logprob, *rest) in zip(ids, found, strict=True):
            self._bad = self._bad or math.isnan(logprob)
            likeliest = zip(map(int, rest[count:]), rest[:count], strict=True)
            scored.append(TokenLogprobs(token, logprob, tuple(likeliest)))
        self._found[start + 1 :] = scored

    def result(self) -> tuple[tuple[TokenLogprobs | None, ...] | None, ActographError | None]:
        """The scores, or the error that prevented them; neither if the run ended before the prompt."""
        if len(self._found) < len(self._ids):
            return None, None
        if not self._bad:
            return tuple(self._found), None
        return None, _not_numbers(self._request, "the prompt's tokens")


class NextScore:
    """Log probabilities of tokens that may follow a prompt, as it is and after each of its variants.

    Nothing waits for the device before the end.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        self._found: Tensor | None = None
        #: of some variants: their numbers in the request, and [variants, tokens]
        self._of_variants: list[tuple[Sequence[int], Tensor]] = []

    def take(self, logits: Tensor) -> None:
        """Take the logits of the last token of the prompt, [vocabulary]."""
        self._found = self._scores(logits)

    def take_variants(self, numbers: Sequence[int], logits: Tensor) -> None:
        """Take the logits of the last token after each of these variants, [variants, vocabulary]."""
        self._of_variants.append((numbers, self._scores(logits)))

    def _scores(self, logits: Tensor) -> Tensor:
        scores = logits.to(torch.float32)
        chosen = scores[..., to_device(np.array(self._request.next_tokens), scores.device)]
        return chosen - scores.logsumexp(-1, keepdim=True)

    def result(self) -> tuple[tuple[float, ...] | None, ActographError | None]:
        """The log probabilities, or the error that prevented them; neither if the prompt was not read."""
        if self._found is None:
            return None, None
        found = tuple(self._found.tolist())
        if all(map(math.isfinite, found)):
            return found, None
        return None, _not_numbers(self._request, "the next token")

    def of_variants(self) -> tuple[tuple[tuple[float, ...], ...] | None, ActographError | None]:
        """The same after each variant; neither if there are none, or not all were read."""
        count = len(self._request.variants)
        if not count or sum(len(numbers) for numbers, _ in self._of_variants) < count:
            return None, None
        found = np.empty((count, len(self._request.next_tokens)))
        for numbers, scores in self._of_variants:
            found[list(numbers)] = scores.cpu().numpy()
        if np.isfinite(found).all():
            return tuple(map(tuple, found.tolist())), None
        return None, _not_numbers(self._request, "the next token of a variant")


def _not_numbers(request: Request, of: str) -> ActographError:
    what = f"the model's probabilities of {of} are not numbers (NaN or infinity)"
    if request.edits or request.variants:
        return InterventionFailed(f"{what}; take a smaller coefficient or vector")
    return CaptureFailed(what)
