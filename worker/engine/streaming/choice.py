"""Choice of each row's next token, by the row's own sampling."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from actograph.contract.specs import SamplingSpec
from worker.engine.model.loaded import LoadedModel
from worker.engine.requests import TokenLogprobs
from worker.engine.streaming.live import Live
from worker.engine.tokens.checkpoint_processors import processors_of
from worker.engine.tokens.constraints import allow_only
from worker.engine.tokens.penalties import changes_logits
from worker.engine.tokens.sampling import candidates, drawn, signed

#: temperature, top_k, top_p of rows that are drawn together
_Way = tuple[float, int | None, float]


class TokenChoice:
    """Chooses tokens as the traced engine does, for rows at different steps.

    The order is the same: the checkpoint's own processors, log probabilities, bias and penalties,
    constraints, then temperature, top-k, top-p and the draw. Its noise depends on seed, step and token alone.
    """

    def __init__(self, model: LoadedModel) -> None:
        self._device = model.device
        # for one row without padding the length of its prompt does not matter
        self._processors: list[Any] = processors_of(model, [1])

    def choose(self, logits: Tensor, rows: Sequence[Live]) -> list[int]:
        """The next token of each row; log probabilities go to the rows that ask.

        Args:
            logits: as the model computes them, [rows, vocabulary].
        """
        self._note_nan(logits, rows)
        sampled = any(row.plan.sampling.temperature > 0 for row in rows)
        if not self._processors and not sampled and not any(map(_changes, rows)):
            return logits.argmax(-1).tolist()
        scores = logits.to(torch.float32, copy=True)
        for i, row in enumerate(rows):
            if self._processors:
                ids = torch.tensor([row.request.prompt_ids + tuple(row.generated)], device=self._device)
                for processor in self._processors:
                    scores[i : i + 1] = processor(ids, scores[i : i + 1])
        asking = [i for i, row in enumerate(rows) if row.request.top_logprobs is not None]
        known = scores[asking].log_softmax(dim=-1) if asking else scores
        for i, row in enumerate(rows):
            if changes_logits(row.plan.sampling):
                _penalise(scores[i], row.plan.sampling, row.generated)
            if row.request.constraint is not None:
                allow_only(scores[i], row.request.constraint, row.generated)
        chosen = self._drawn(scores, rows)
        if asking:
            _record(known, [rows[i] for i in asking], [chosen[i] for i in asking])
        return chosen

    @staticmethod
    def _note_nan(logits: Tensor, rows: Sequence[Live]) -> None:
        edited = [i for i, row in enumerate(rows) if row.edits and row.first_bad is None]
        if not edited:
            return
        for i, bad in zip(edited, logits[edited].amax(-1).isnan().tolist(), strict=True):
            if bad:
                rows[i].first_bad = len(rows[i].generated)

    def _drawn(self, scores: Tensor, rows: Sequence[Live]) -> list[int]:
        ways: dict[_Way, list[int]] = {}
        for i, row in enumerate(rows):
            s = row.plan.sampling
            way = (s.temperature, s.top_k, s.top_p) if s.temperature > 0 else (0.0, None, 1.0)
            ways.setdefault(way, []).append(i)
        chosen = [0] * len(rows)
        for way, members in ways.items():
            own = scores if len(members) == len(rows) else scores[members]
            tokens = own.argmax(-1) if not way[0] else self._draw(own, [rows[i] for i in members], way)
            for i, token in zip(members, tokens.tolist(), strict=True):
                chosen[i] = token
        return chosen

    def _draw(self, scores: Tensor, rows: Sequence[Live], way: _Way) -> Tensor:
        temperature, top_k, top_p = way
        values, index = candidates(scores, temperature=temperature, top_k=top_k, top_p=top_p)
        seeds = torch.tensor([signed(row.request.seed) for row in rows], device=self._device)
        steps = torch.tensor([len(row.generated) for row in rows], device=self._device)
        best = drawn(values, index, seeds, steps)
        return best if index is None else index.gather(1, best[:, None])[:, 0]


def _changes(row: Live) -> bool:
    request = row.request
    return (
        request.top_logprobs is not None
        or request.constraint is not None
        or changes_logits(row.plan.sampling)
    )


def _penalise(scores: Tensor, spec: SamplingSpec, generated: Sequence[int]) -> None:
    """Bias and penalties of one row [vocabulary], in place; formulas in `tokens.penalties`."""
    if spec.logit_bias:
        biased = torch.tensor(list(spec.logit_bias), device=scores.device)
        scores[biased] += torch.tensor(
            list(spec.logit_bias.values()), dtype=torch.float32, device=scores.device
        )
    if (spec.presence_penalty or spec.frequency_penalty) and generated:
        counts = Counter(generated)
        times = torch.tensor(list(counts.values()), dtype=torch.float32, device=scores.device)
        ids = torch.tensor(list(counts), device=scores.device)
        scores[ids] -= spec.presence_penalty + spec.frequency_penalty * times


def _record(logprobs: Tensor, rows: Sequence[Live], chosen: Sequence[int]) -> None:
    """Note the log probabilities of the chosen tokens; `logprobs` [rows, vocabulary]."""
    most = max(row.request.top_logprobs or 0 for row in rows)
    values, ids = logprobs.topk(most, dim=-1)
    for i, (row, token) in enumerate(zip(rows, chosen, strict=True)):
        top = row.request.top_logprobs or 0
        best = tuple(zip(ids[i, :top].tolist(), values[i, :top].tolist(), strict=True))
        row.logprobs.append(TokenLogprobs(token, float(logprobs[i, token]), best))
