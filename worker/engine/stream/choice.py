"""Choice of each row's next token, by the row's own sampling.

The order is the lockstep engine's: the checkpoint's own processors, log probabilities, bias and penalties,
then temperature, top-k, top-p and the draw, whose noise depends on seed, step and token alone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from actograph.contract.specs import SamplingSpec
from worker.engine.model.loaded import LoadedModel
from worker.engine.requests import TokenLogprobs
from worker.engine.stream.live import Live
from worker.engine.tokens import checkpoint_processors
from worker.engine.tokens.logprobs import LogprobRecorder
from worker.engine.tokens.penalties import changes_logits
from worker.engine.tokens.sampling import _signed as signed
from worker.engine.tokens.sampling import candidates, gumbel


class ChosenToken(NamedTuple):
    """The next token of a row; -1 if its logits are not numbers."""

    token: int
    logprobs: TokenLogprobs | None = None


class TokenChoice:
    """Chooses tokens for rows at different steps; it changes no row."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model

    def prepare(self, live: Live) -> None:
        """Give a request the checkpoint's processors, and its ids on the device if its choices read them."""
        if live.reads:
            return
        live.processors = checkpoint_processors.of_one(self._model, live.prompt, live.item.max_tokens)
        if live.processors or live.sampling.presence_penalty or live.sampling.frequency_penalty:
            live.hold_ids(self._model.device)

    def choose(self, logits: Tensor, rows: Sequence[Live]) -> list[ChosenToken]:
        """The next token of each row.

        Args:
            logits: as the model computes them, [rows, vocabulary].
        """
        # one transfer: the tokens, and -1 where the largest logit is not a number
        chosen = logits.argmax(-1).masked_fill(logits.amax(-1).isnan(), -1).tolist()
        special = [i for i, row in enumerate(rows) if chosen[i] >= 0 and self._is_special(row)]
        made = [ChosenToken(token) for token in chosen]
        if special:
            scores = logits[special].to(torch.float32)
            for i, choice in zip(special, self._of(scores, [rows[i] for i in special]), strict=True):
                made[i] = choice
        return made

    def _is_special(self, row: Live) -> bool:
        sampled = row.sampling.temperature > 0 or row.item.request.top_logprobs is not None
        return sampled or bool(row.processors) or changes_logits(row.sampling)

    def _of(self, scores: Tensor, rows: Sequence[Live]) -> list[ChosenToken]:
        """Choose by float32 logits, which it may write to."""
        for i, row in enumerate(rows):
            for processor in row.processors:
                assert row.ids is not None
                scores[i : i + 1] = processor(row.ids[:, : len(row.tokens)], scores[i : i + 1])
        recorder: Any = None
        if any(row.item.request.top_logprobs is not None for row in rows):
            recorder = LogprobRecorder([row.item.request for row in rows])
            recorder(None, scores)
        for i, row in enumerate(rows):
            if changes_logits(row.sampling):
                _penalise(scores[i], row)
        tokens = self._drawn(scores, rows)
        if recorder is None:
            return [ChosenToken(token) for token in tokens]
        recorder.chosen(torch.tensor(tokens, device=scores.device))
        found = [recorder.of(i, 1) or (None,) for i in range(len(rows))]
        return [ChosenToken(token, own[0]) for token, own in zip(tokens, found, strict=True)]

    def _drawn(self, scores: Tensor, rows: Sequence[Live]) -> list[int]:
        ways: dict[tuple[float, int | None, float], list[int]] = {}
        for i, row in enumerate(rows):
            s = row.sampling
            way = (s.temperature, s.top_k, s.top_p) if s.temperature > 0 else (0.0, None, 1.0)
            ways.setdefault(way, []).append(i)
        chosen = [0] * len(rows)
        for way, members in ways.items():
            own = scores if len(members) == len(rows) else scores[members]
            tokens = own.argmax(-1) if not way[0] else self._draw(own, [rows[i] for i in members], way)
            for i, token in zip(members, tokens.tolist(), strict=True):
                chosen[i] = token
        return chosen

    def _draw(self, scores: Tensor, rows: Sequence[Live], way: tuple[float, int | None, float]) -> Tensor:
        temperature, top_k, top_p = way
        values, index = candidates(scores, temperature=temperature, top_k=top_k, top_p=top_p)
        every = torch.arange(scores.shape[-1], device=scores.device)[None] if index is None else None
        drawn = []
        for i, row in enumerate(rows):
            own = every if index is None else index[i : i + 1]
            assert own is not None
            seed = torch.tensor([signed(row.item.request.seed)], device=scores.device)
            best = gumbel(seed, len(row.generated), own).add_(values[i]).argmax(-1)
            drawn.append(own[0, best])
        return torch.cat(drawn)


def _penalise(scores: Tensor, row: Live) -> None:
    """Bias and penalties of one row [vocabulary], in place; formulas in `tokens.penalties`."""
    spec: SamplingSpec = row.sampling
    if spec.logit_bias:
        biased = torch.tensor(list(spec.logit_bias), device=scores.device)
        added = torch.tensor(list(spec.logit_bias.values()), dtype=torch.float32, device=scores.device)
        scores[biased] += added
    if (spec.presence_penalty or spec.frequency_penalty) and row.generated:
        assert row.ids is not None
        ids, times = row.ids[0, row.prompt : len(row.tokens)].unique(return_counts=True)  # type: ignore[no-untyped-call]
        scores[ids] -= spec.presence_penalty + spec.frequency_penalty * times.to(torch.float32)
