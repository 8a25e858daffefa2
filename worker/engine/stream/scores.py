"""Log probabilities of a prompt's own tokens, chunk by chunk."""

import torch
from torch import Tensor

from actograph.contract.errors import ActographError, CaptureFailed, InterventionFailed
from worker.engine.messages import TokenLogprobs
from worker.engine.requests import GenerationRequest

#: bytes of logits in memory at once to score prompts
_PIECE_BYTES = 128 << 20
#: logits of a token, and float32 copies of them
_COPIES = 4


def scored_tokens(vocabulary: int) -> int:
    """Most tokens of a pass whose logits are all computed."""
    return max(1, _PIECE_BYTES // (4 * _COPIES * vocabulary))


class PromptScore:
    """Scores of one prompt."""

    def __init__(self, request: GenerationRequest) -> None:
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
        scores = logits[: len(ids)].to(torch.float32)
        total = scores.logsumexp(-1, keepdim=True)
        own = (scores.gather(-1, torch.tensor(ids, device=scores.device)[:, None]) - total)[:, 0]
        top, top_ids = scores.topk(min(self._request.top_logprobs or 0, scores.shape[-1]), dim=-1)
        values = zip(ids, own.tolist(), top_ids.tolist(), (top - total).tolist(), strict=True)
        self._bad = self._bad or bool(own.isnan().any())
        self._found[start + 1 :] = [
            TokenLogprobs(token, logprob, tuple(zip(likeliest, logprobs, strict=True)))
            for token, logprob, likeliest, logprobs in values
        ]

    def result(self) -> tuple[tuple[TokenLogprobs | None, ...] | None, ActographError | None]:
        """The scores, or the error that prevented them; neither if the run ended before the prompt."""
        if len(self._found) < len(self._ids):
            return None, None
        if not self._bad:
            return tuple(self._found), None
        what = "the model's probabilities of the prompt's tokens are not numbers (NaN)"
        if self._request.edits:
            return None, InterventionFailed(f"{what}; take a smaller coefficient or vector")
        return None, CaptureFailed(what)
