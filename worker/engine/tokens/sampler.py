"""The next token of each row of logits, in one vectorised pass with tables per slot on the device.

What a request asks of its sampling is written into its slot once, when it starts. A pass brings a few numbers
of each row, makes the same calls for any number of rows, and reads the chosen tokens, with their log
probabilities, in one transfer. It skips what no row asks for, so greedy rows stay cheap.

The order: log probabilities, bias and penalties, ruled out tokens, then temperature, min-p, top-k, top-p and
the draw, whose noise depends on seed, step and token alone. A row's token does not depend on the other rows.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from actograph.contract.errors import InvalidRequest
from actograph.contract.specs import SamplingSpec
from worker.engine.messages import TokenLogprobs
from worker.engine.model.host_memory import to_device
from worker.engine.tokens.adjustments import NUMBERS, Adjustments, adjusts, counts_tokens
from worker.engine.tokens.sampling import Look, Warps, draw, look_of, signed
from worker.engine.tokens.table_rows import TableRows, widened

#: rows of the tables of numbers: temperature, top_p, min_p's logarithm; and: seed, top_k
_FLOATS, _WHOLES = 3, 2


class ChosenToken(NamedTuple):
    """The next token of a row; -1 if its logits are not numbers."""

    token: int
    logprobs: TokenLogprobs | None = None


class SamplerEntry(NamedTuple):
    """The place of a request in the sampler's tables.

    Attributes:
        number: in the table of draws; None for greedy decoding.
        look: tokens that its draws look at; None for greedy decoding.
        top_k: number of tokens that it chooses from; 0: all.
        bounded: whether it has a min-p.
        adjusted: its slot of the adjustments; None if its logits stay as they are.
        counts: whether its generated tokens change its logits.
        top_logprobs: likeliest tokens that it asks for; None: no log probabilities.
    """

    number: int | None = None
    look: Look | None = None
    top_k: int = 0
    bounded: bool = False
    adjusted: int | None = None
    counts: bool = False
    top_logprobs: int | None = None


class SampledRow(NamedTuple):
    """A row of logits.

    Attributes:
        step: tokens that the request has generated.
        newest: the last of them; -1 before the first.
    """

    entry: SamplerEntry
    step: int
    newest: int


class RuledOut(NamedTuple):
    """Tokens that some rows cannot choose: the rows, and bool [those rows, vocabulary] on the device."""

    rows: Sequence[int]
    tokens: Tensor


class Sampler:
    """Chooses tokens.

    Args:
        device: of the logits.
        vocabulary: columns of the logits.
    """

    def __init__(self, device: torch.device, vocabulary: int) -> None:
        self._device, self._vocabulary = device, vocabulary
        self._slots = TableRows()
        self._floats = torch.zeros(_FLOATS, 0, device=device)
        self._wholes = torch.zeros(_WHOLES, 0, dtype=torch.int64, device=device)
        self._adjustments = Adjustments(device)

    def open(
        self,
        sampling: SamplingSpec,
        *,
        seed: int = 0,
        prompt: Sequence[int] = (),
        most: int = 0,
        ends: Sequence[int] = (),
        top_logprobs: int | None = None,
    ) -> SamplerEntry:
        """Write a request's sampling into an entry.

        Args:
            most: tokens that it generates at most.
            ends: ids that end a generation.

        Raises:
            InvalidRequest: the bias names a token that the model does not have.
        """
        vocabulary = self._vocabulary
        if (largest := max(sampling.logit_bias, default=0)) >= vocabulary:
            raise InvalidRequest(
                f"logit_bias names token {largest}; this model's ids are from 0 to {vocabulary - 1}",
                param="sampling.logit_bias",
            )
        number = look = adjusted = None
        if sampling.temperature > 0:
            number, look = (
                self._draws(sampling, seed),
                look_of(sampling.top_k, sampling.top_p, self._vocabulary),
            )
        if adjusts(sampling):
            last = [one for one in (*ends, *sampling.stop_token_ids) if one < vocabulary]
            adjusted = self._adjustments.open(sampling, prompt, most, last)
        bounded = number is not None and sampling.min_p > 0
        top_k = 0 if number is None else sampling.top_k or 0
        return SamplerEntry(number, look, top_k, bounded, adjusted, counts_tokens(sampling), top_logprobs)

    def close(self, entry: SamplerEntry) -> None:
        """Free an entry."""
        if entry.number is not None:
            self._slots.give(entry.number)
        if entry.adjusted is not None:
            self._adjustments.close(entry.adjusted)

    def _draws(self, sampling: SamplingSpec, seed: int) -> int:
        number = self._slots.take()
        self._floats, self._wholes = (widened(one, self._slots.size) for one in (self._floats, self._wholes))
        top_p = sampling.top_p if sampling.top_p < 1 else math.inf
        min_p = math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf
        floats = np.array([sampling.temperature, top_p, min_p], np.float32)
        top_k = self._vocabulary if sampling.top_k is None else min(sampling.top_k, self._vocabulary)
        self._floats[:, number].copy_(to_device(floats, self._device))
        self._wholes[:, number].copy_(to_device(np.array([signed(seed), top_k]), self._device))
        return number

    def choose(
        self,
        logits: Tensor,
        rows: Sequence[SampledRow],
        *,
        processed: Tensor | None = None,
        ruled_out: RuledOut | None = None,
    ) -> list[ChosenToken]:
        """The next token of each row.

        Args:
            logits: as the model computes them, [rows, vocabulary]; they stay as they are.
            processed: the same after the checkpoint's own processors, float32; None: it has none.
        """
        if processed is None and ruled_out is None and all(row.entry == _PLAIN for row in rows):
            best = logits.argmax(-1, keepdim=True)  # a NaN, if there is one
            bad = logits.gather(-1, best).isnan()
            return [ChosenToken(token) for token in best.masked_fill_(bad, -1)[:, 0].tolist()]
        numbers = _Numbers(rows, ruled_out, self._device)
        bad = logits.amax(-1).isnan()
        logits = logits if processed is None else processed
        asking = numbers.asking
        table = None if asking is None else _some(logits, asking).to(torch.float32).log_softmax(-1)
        scores = self._adjusted(logits, numbers, ruled_out)
        tokens = self._chosen(scores, numbers)
        tokens.masked_fill_(bad, -1)
        if table is None or asking is None:
            return [ChosenToken(token) for token in tokens.tolist()]
        return _with_logprobs(table, tokens, _some(tokens, asking), rows)

    def _adjusted(self, logits: Tensor, numbers: "_Numbers", ruled_out: RuledOut | None) -> Tensor:
        """Logits [rows, vocabulary] in float32 after bias, penalties and ruled out tokens."""
        adjusted = numbers.adjusted
        if adjusted is None and ruled_out is None:
            return logits.to(torch.float32)
        scores = logits.to(torch.float32, copy=True).contiguous()
        if adjusted is not None:
            most = max(self._adjustments.most_listed(slot, step) for slot, step in numbers.listed)
            self._adjustments.apply(scores, adjusted, most)
        if numbers.ruled is not None and ruled_out is not None:
            own = scores.index_select(0, numbers.ruled).masked_fill_(ruled_out.tokens, -torch.inf)
            scores.index_copy_(0, numbers.ruled, own)
        return scores

    def _chosen(self, scores: Tensor, numbers: "_Numbers") -> Tensor:
        """Tokens of all rows, int64 [rows]: each way of choosing once."""
        tokens = None
        for look, members in numbers.ways.items():
            own = scores if members.alone else scores.index_select(0, members.rows)
            if look is None:
                chosen = own.argmax(-1)
            else:
                floats, wholes = (one.index_select(1, members.slots) for one in (self._floats, self._wholes))
                temperature, top_p, min_p = floats[..., None]
                seeds, top_k = wholes
                bounds = min_p if members.bounded else None
                warps = Warps(look, temperature, top_p, top_k[:, None], bounds, members.most)
                chosen = draw(own, warps, seeds, members.steps)
            if members.alone:
                return chosen
            if tokens is None:
                tokens = chosen.new_empty(len(scores))
            tokens.index_copy_(0, members.rows, chosen)
        assert tokens is not None
        return tokens


_PLAIN = SamplerEntry()


class _Members(NamedTuple):
    """Rows that choose in one way: int64 [members] each, on the device."""

    rows: Tensor
    slots: Tensor
    steps: Tensor
    most: int  # the largest top-k
    bounded: bool
    alone: bool  # they are all rows


class _Numbers:
    """Numbers of a pass, brought to the device in one copy.

    Attributes:
        adjusted: see `Adjustments.apply`.
        listed: slot and counted tokens of each adjusted row.
        ways: rows by what their draws look at; None: greedy.
        asking: rows that ask for log probabilities.
        ruled: rows that cannot choose some tokens.
    """

    def __init__(self, rows: Sequence[SampledRow], ruled_out: RuledOut | None, device: torch.device) -> None:
        adjusted = [
            (i, entry.adjusted, step, newest if entry.counts else -1)
            for i, (entry, step, newest) in enumerate(rows)
            if entry.adjusted is not None
        ]
        ways: dict[Look | None, list[tuple[int, int, int]]] = {}
        for i, (entry, step, _) in enumerate(rows):
            ways.setdefault(entry.look, []).append((i, entry.number or 0, step))
        asking = [i for i, row in enumerate(rows) if row.entry.top_logprobs is not None]
        blocks: list[list[int]] = [_flat(adjusted), *map(_flat, ways.values()), asking]
        blocks.append([] if ruled_out is None else list(ruled_out.rows))
        whole = to_device(np.array([one for block in blocks for one in block], np.int64), device)
        first, *middle, asked, ruled = torch.split(whole, [len(block) for block in blocks])
        self.adjusted = first.view(NUMBERS, -1) if adjusted else None
        self.listed = [(slot, step if newest >= 0 else 0) for _, slot, step, newest in adjusted]
        self.asking = asked if asking else None
        self.ruled = ruled if ruled_out is not None else None
        self.ways = {}
        for (look, members), own in zip(ways.items(), middle, strict=True):
            entries = [rows[i].entry for i, _, _ in members]
            most = max(entry.top_k for entry in entries)
            bounded = any(entry.bounded for entry in entries)
            places, draws, steps = own.view(3, -1)
            alone = len(members) == len(rows)
            self.ways[look] = _Members(places, draws, steps, most, bounded, alone)


def _flat(columns: Sequence[tuple[int, ...]]) -> list[int]:
    """Numbers of each column one after the other."""
    return [one for row in zip(*columns, strict=True) for one in row]


def _some(rows: Tensor, index: Tensor) -> Tensor:
    """Rows by their numbers; all of them without a copy."""
    return rows if len(index) == len(rows) else rows.index_select(0, index)


def _with_logprobs(
    table: Tensor, tokens: Tensor, asking: Tensor, rows: Sequence[SampledRow]
) -> list[ChosenToken]:
    """Chosen tokens, with log probabilities where a row asks for them.

    Args:
        table: log probabilities of the rows that ask, before bias and penalties, [asking, vocabulary].
        tokens: of all rows; asking: of the rows that ask.
    """
    tops = [row.entry.top_logprobs for row in rows if row.entry.top_logprobs is not None]
    wide = min(max(tops), table.shape[-1])
    values, ids = table.topk(wide, dim=-1)
    own = table.gather(-1, asking.clamp_min(0)[:, None])
    # float64 holds tokens and float32 exactly, so one transfer takes all
    parts = [tokens, own, ids, values]
    flat = torch.cat([part.to(torch.float64).view(-1) for part in parts]).tolist()
    n = len(tops)
    chosen, flat = [int(token) for token in flat[: len(rows)]], flat[len(rows) :]
    logprobs, likeliest, their = flat[:n], flat[n : n + n * wide], flat[n + n * wide :]
    made, at = [], 0
    for token, row in zip(chosen, rows, strict=True):
        top = row.entry.top_logprobs
        if top is None or token < 0:
            made.append(ChosenToken(token))
        else:
            some = slice(at * wide, at * wide + min(top, wide))
            best = tuple(zip(map(int, likeliest[some]), their[some], strict=True))
            made.append(ChosenToken(token, TokenLogprobs(token, logprobs[at], best)))
        at += top is not None
    return made
