"""Log probabilities of generated tokens, for rows that request them."""

from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessor, StoppingCriteria

from worker.engine.requests import GenerationRequest, TokenLogprobs


class LogprobRecorder(LogitsProcessor):
    """Keeps one step's distribution until the token is chosen; it runs before the sampler.

    It gets float32 logits after the checkpoint's own processors.
    """

    def __init__(self, requests: Sequence[GenerationRequest]) -> None:
        self._tops = {i: r.top_logprobs for i, r in enumerate(requests) if r.top_logprobs is not None}
        self._found: dict[int, list[TokenLogprobs]] = {row: [] for row in self._tops}
        self._step: torch.Tensor | None = None

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self._step = scores[list(self._tops)].log_softmax(dim=-1)  # [rows that ask, vocab]
        return scores

    def chosen(self, newest: torch.Tensor) -> None:
        """`newest`: the token of every row of the batch, int64 [batch]."""
        assert self._step is not None
        tokens = newest[list(self._tops)][:, None]
        most = max(self._tops.values())
        values, ids = self._step.topk(most, dim=-1)
        of_chosen = self._step.gather(1, tokens)[:, 0].tolist()
        step = (tokens[:, 0].tolist(), of_chosen, ids.tolist(), values.tolist())
        for (row, top), token, logprob, top_ids, top_values in zip(self._tops.items(), *step, strict=True):
            best = tuple(zip(top_ids[:top], top_values[:top], strict=True))
            self._found[row].append(TokenLogprobs(token, logprob, best))
        self._step = None

    def of(self, row: int, tokens: int) -> tuple[TokenLogprobs, ...] | None:
        """Log probabilities of a row's first tokens; None if not requested."""
        return tuple(self._found[row][:tokens]) if row in self._found else None


class AfterChoice(StoppingCriteria):
    """Passes each chosen token to the recorder; never ends a generation."""

    def __init__(self, recorder: LogprobRecorder) -> None:
        self._recorder = recorder

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **_: Any) -> torch.BoolTensor:
        self._recorder.chosen(input_ids[:, -1])
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)  # type: ignore[return-value]
