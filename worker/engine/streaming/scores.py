"""Log probabilities of a prompt's own tokens, chunk by chunk."""

from collections.abc import Sequence

import torch
from torch import Tensor

from actograph.contract.errors import ActographError, CaptureFailed, InterventionFailed
from actograph.contract.plans.batch_memory import SCORED_PIECE_BYTES, scored_token_bytes
from worker.engine.requests import GenerationRequest, TokenLogprobs


def scored_tokens(vocabulary: int) -> int:
    """Most tokens of a chunk whose logits are all computed."""
    return max(1, SCORED_PIECE_BYTES // scored_token_bytes(vocabulary))


class PromptScore:
    """Scores of one prompt."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._most = request.top_logprobs or 0
        self._found: list[TokenLogprobs | None] = [None]
        self._bad = False

    def take(self, logits: Tensor, start: int) -> None:
        """Take the logits of prompt tokens from `start` on, float32 [tokens, vocabulary]."""
        ids = self._request.prompt_ids[start + 1 : start + 1 + len(logits)]  # of the tokens after those
        logits = logits[: len(ids)]
        if not ids:
            return
        total = logits.logsumexp(-1, keepdim=True)
        targets = torch.tensor(ids, device=logits.device)[:, None]
        own = (logits.gather(-1, targets) - total)[:, 0]
        top, top_ids = logits.topk(min(self._most, logits.shape[-1]), dim=-1)
        self._bad = self._bad or bool(own.isnan().any())
        self._found += _found(ids, own, top_ids, top - total)

    def result(self) -> tuple[tuple[TokenLogprobs | None, ...] | None, ActographError | None]:
        """The scores, or the error that prevented them; neither if the run ended before the prompt."""
        if len(self._found) < len(self._request.prompt_ids):
            return None, None
        if not self._bad:
            return tuple(self._found), None
        what = "the model's probabilities of the prompt's tokens are not numbers (NaN)"
        if self._request.edits:
            return None, InterventionFailed(f"{what}; take a smaller coefficient or vector")
        return None, CaptureFailed(what)


def _found(ids: Sequence[int], own: Tensor, top_ids: Tensor, top: Tensor) -> list[TokenLogprobs]:
    values = zip(ids, own.tolist(), top_ids.tolist(), top.tolist(), strict=True)
    return [
        TokenLogprobs(token, logprob, tuple(zip(likeliest, logprobs, strict=True)))
        for token, logprob, likeliest, logprobs in values
    ]
