"""Choice of each row's next token, by the row's own sampling.

The order: the checkpoint's own processors, log probabilities, bias and penalties, the grammar, then
temperature, top-k, top-p and the draw, whose noise depends on seed, step and token alone.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from worker.engine.messages import TokenLogprobs
from worker.engine.model.loaded import LoadedModel
from worker.engine.stream.live import Live
from worker.engine.tokens import checkpoint_processors
from worker.engine.tokens.grammar import Grammar
from worker.engine.tokens.logprobs import logprobs_of
from worker.engine.tokens.penalties import changes_logits, has_penalty, penalise
from worker.engine.tokens.sampling import draw


class ChosenToken(NamedTuple):
    """The next token of a row; -1 if its logits are not numbers."""

    token: int
    logprobs: TokenLogprobs | None = None


class _Way(NamedTuple):
    """How rows draw; rows that draw alike are drawn together."""

    temperature: float
    top_k: int | None
    top_p: float
    min_p: float


class TokenChoice:
    """Chooses tokens for rows at different steps; it changes no row."""

    def __init__(self, model: LoadedModel) -> None:
        self._model = model

    def prepare(self, live: Live) -> None:
        """Give a request the checkpoint's processors, and its ids on the device if its choices read them."""
        if live.reads:
            return
        if live.item.request.grammar is not None:
            live.grammar = Grammar(self._model, live.item.request.grammar)
        live.processors = checkpoint_processors.of_one(self._model, live.prompt, live.item.max_tokens)
        if live.processors or has_penalty(live.sampling):
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
        constrained = row.grammar is not None or bool(row.processors)
        return sampled or constrained or changes_logits(row.sampling)

    def _of(self, scores: Tensor, rows: Sequence[Live]) -> list[ChosenToken]:
        """Choose by float32 logits, which it may write to."""
        for i, row in enumerate(rows):
            for processor in row.processors:
                assert row.ids is not None
                scores[i : i + 1] = processor(row.ids[:, : len(row.tokens)], scores[i : i + 1])
        asking = [i for i, row in enumerate(rows) if row.item.request.top_logprobs is not None]
        table = scores[asking].log_softmax(-1) if asking else None
        for i, row in enumerate(rows):
            if changes_logits(row.sampling):
                penalise(scores[i], row.sampling, row.known_ids, row.prompt, self._model.eos_token_ids)
            if row.grammar is not None:
                ruled_out = row.grammar.ruled_out(scores.shape[-1]).to(scores.device)
                scores[i].masked_fill_(ruled_out, -torch.inf)
        tokens = self._drawn(scores, rows)
        made = [ChosenToken(token) for token in tokens]
        if table is not None:
            tops = [rows[i].item.request.top_logprobs or 0 for i in asking]
            found = logprobs_of(table, [tokens[i] for i in asking], tops)
            for i, logprobs in zip(asking, found, strict=True):
                made[i] = ChosenToken(tokens[i], logprobs)
        return made

    def _drawn(self, scores: Tensor, rows: Sequence[Live]) -> list[int]:
        ways: dict[_Way, list[int]] = {}
        for i, row in enumerate(rows):
            s = row.sampling
            sampled = s.temperature > 0
            way = _Way(s.temperature, s.top_k, s.top_p, s.min_p) if sampled else _Way(0.0, None, 1.0, 0.0)
            ways.setdefault(way, []).append(i)
        chosen = [0] * len(rows)
        for way, members in ways.items():
            own = scores if len(members) == len(rows) else scores[members]
            tokens = (
                own.argmax(-1) if not way.temperature else self._draw(own, [rows[i] for i in members], way)
            )
            for i, token in zip(members, tokens.tolist(), strict=True):
                chosen[i] = token
        return chosen

    def _draw(self, scores: Tensor, rows: Sequence[Live], way: _Way) -> Tensor:
        return draw(
            scores,
            seeds=[row.item.request.seed for row in rows],
            steps=[len(row.generated) for row in rows],
            **way._asdict(),
        )
