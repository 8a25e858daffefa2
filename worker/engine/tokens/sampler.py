"""The next token of each row of logits, in one vectorised pass with tables per slot on the device.

What a request asks of its sampling is written into its slot once, when it starts. A pass brings a few numbers
of each row, and makes the same calls for any number of rows. It skips what no row asks for, so greedy rows
stay cheap. The tokens stay on the device, where the next pass reads them (`next_ids`). A copy for the host is
begun, and read when the host needs it.

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
from worker.engine.model.host_memory import HostCopy, to_device
from worker.engine.tokens.adjustments import NUMBERS, Adjustments, adjusts, counts_tokens
from worker.engine.tokens.sampling import Look, Warps, draw, look_of, signed
from worker.engine.tokens.table_rows import TableRows

#: rows of the tables of numbers: temperature, top_p, min_p's logarithm; and: seed, top_k
_FLOATS, _WHOLES = 3, 2


class ChosenToken(NamedTuple):
    """The next token of a row; -1 if its logits are not numbers."""

    token: int
    logprobs: TokenLogprobs | None = None


class SamplerEntry(NamedTuple):
    """The place of a request in the sampler's tables.

    Attributes:
        number: its row of the tables, and its place in `next_ids`.
        look: tokens that its draws look at; None for greedy decoding.
        top_k: number of tokens that it chooses from; 0: all.
        bounded: whether it has a min-p.
        adjusted: its slot of the adjustments; None if its logits stay as they are.
        counts: whether its generated tokens change its logits.
        top_logprobs: likeliest tokens that it asks for; None: no log probabilities.
    """

    number: int
    look: Look | None = None
    top_k: int = 0
    bounded: bool = False
    adjusted: int | None = None
    counts: bool = False
    top_logprobs: int | None = None

    @property
    def plain(self) -> bool:
        """Whether it takes the likeliest token and asks for nothing else."""
        return self.look is None and self.adjusted is None and self.top_logprobs is None


class SampledRow(NamedTuple):
    """A row of logits.

    Attributes:
        step: tokens that the request has generated.
        newest: the last of them; -1 before the first; None: it is in `next_ids` alone.
    """

    entry: SamplerEntry
    step: int
    newest: int | None


class RuledOut(NamedTuple):
    """Tokens that some rows cannot choose: the rows, and bool [those rows, vocabulary] on the device."""

    rows: Sequence[int]
    tokens: Tensor


class Choice:
    """The tokens that a pass has chosen, on their way to the host.

    Args:
        tokens: int64 [rows]; peaks: the largest logit of each, which is no number if one of them is none.
        logprobs: float64: of the rows that ask, each one's log probability, ids and values of the likeliest.
    """

    def __init__(
        self, rows: Sequence[SampledRow], tokens: Tensor, peaks: Tensor, logprobs: Tensor | None = None
    ) -> None:
        self._rows = rows
        self._copy = HostCopy(tokens, peaks, *([] if logprobs is None else [logprobs]))

    def read(self) -> list[ChosenToken]:
        """The next token of each row, with log probabilities where a row asks for them."""
        tokens, peaks, *logprobs = self._copy.read()
        tokens = [-1 if math.isnan(peak) else token for token, peak in zip(tokens, peaks, strict=True)]
        if not logprobs:
            return [ChosenToken(token) for token in tokens]
        (flat,), made, at = logprobs, [], 0
        n = sum(row.entry.top_logprobs is not None for row in self._rows)
        wide = (len(flat) // n - 1) // 2
        own, likeliest, their = flat[:n], flat[n : n + n * wide], flat[n + n * wide :]
        for token, row in zip(tokens, self._rows, strict=True):
            top = row.entry.top_logprobs
            if top is None or token < 0:
                made.append(ChosenToken(token))
            else:
                some = slice(at * wide, at * wide + min(top, wide))
                best = tuple(zip(map(int, likeliest[some]), their[some], strict=True))
                made.append(ChosenToken(token, TokenLogprobs(token, own[at], best)))
            at += top is not None
        return made


def new_next_ids(entries: int, device: torch.device) -> Tensor:
    """Room for the newest token of each entry, int64 [entries + 1]; the last number is -1, of no entry."""
    made = torch.zeros(entries + 1, dtype=torch.int64, device=device)
    made[entries:].fill_(-1)
    return made


class Sampler:
    """Chooses tokens.

    Args:
        device: of the logits.
        vocabulary: columns of the logits.
        next_ids: takes the newest token of each entry, see `new_next_ids`; None: its own, for 64 entries.
    """

    def __init__(self, device: torch.device, vocabulary: int, next_ids: Tensor | None = None) -> None:
        self._device, self._vocabulary = device, vocabulary
        self._entries = TableRows()
        self.next_ids = new_next_ids(64, device) if next_ids is None else next_ids
        rows = len(self.next_ids) - 1
        self._floats = torch.zeros(_FLOATS, rows, device=device)
        self._wholes = torch.zeros(_WHOLES, rows, dtype=torch.int64, device=device)
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
        look = adjusted = None
        number = self._entries.take()
        if sampling.temperature > 0:
            look = look_of(sampling.top_k, sampling.top_p, vocabulary)
            self._write(number, sampling, seed)
        if adjusts(sampling):
            last = [one for one in (*ends, *sampling.stop_token_ids) if one < vocabulary]
            adjusted = self._adjustments.open(sampling, prompt, most, last)
        bounded = look is not None and sampling.min_p > 0
        top_k = 0 if look is None else sampling.top_k or 0
        return SamplerEntry(number, look, top_k, bounded, adjusted, counts_tokens(sampling), top_logprobs)

    def close(self, entry: SamplerEntry) -> None:
        """Free an entry."""
        self._entries.give(entry.number)
        if entry.adjusted is not None:
            self._adjustments.close(entry.adjusted)

    def set_newest(self, entries: Sequence[SamplerEntry], tokens: Sequence[int]) -> None:
        """Put these tokens where the next pass reads them: what a failed pass wrote there is wrong."""
        numbers = np.array([[entry.number for entry in entries], tokens], np.int64)
        where, ids = to_device(numbers, self._device)
        self.next_ids.index_copy_(0, where, ids)

    def _write(self, number: int, sampling: SamplingSpec, seed: int) -> None:
        """Write what draws depend on into the tables."""
        top_p = sampling.top_p if sampling.top_p < 1 else math.inf
        min_p = math.log(sampling.min_p) if sampling.min_p > 0 else -math.inf
        floats = np.array([sampling.temperature, top_p, min_p], np.float32)
        top_k = self._vocabulary if sampling.top_k is None else min(sampling.top_k, self._vocabulary)
        self._floats[:, number].copy_(to_device(floats, self._device))
        self._wholes[:, number].copy_(to_device(np.array([signed(seed), top_k]), self._device))

    def choose(
        self,
        logits: Tensor,
        rows: Sequence[SampledRow],
        *,
        processed: Tensor | None = None,
        ruled_out: RuledOut | None = None,
    ) -> Choice:
        """Choose the next token of each row, and write it to `next_ids`.

        Args:
            logits: as the model computes them, [rows, vocabulary]; they stay as they are.
            processed: the same after the checkpoint's own processors, float32; None: it has none.
        """
        numbers = _Numbers(rows, ruled_out, self.next_ids)
        if processed is None and ruled_out is None and all(row.entry.plain for row in rows):
            best = logits.argmax(-1, keepdim=True)  # of a NaN, if there is one
            return self._kept(rows, numbers, best[:, 0], logits.gather(-1, best)[:, 0])
        peaks = logits.amax(-1)
        logits = logits if processed is None else processed
        asking = numbers.asking
        table = None if asking is None else _some(logits, asking).to(torch.float32).log_softmax(-1)
        scores = self._adjusted(logits, numbers, ruled_out)
        tokens = self._chosen(scores, numbers)
        if table is None or asking is None:
            return self._kept(rows, numbers, tokens, peaks)
        wide = min(max(row.entry.top_logprobs or 0 for row in rows), table.shape[-1])
        values, ids = table.topk(wide, dim=-1)
        own = table.gather(-1, _some(tokens, asking)[:, None])
        # float64 holds tokens and float32 exactly, so one transfer takes all
        found = torch.cat([part.to(torch.float64).view(-1) for part in (own, ids, values)])
        return self._kept(rows, numbers, tokens, peaks, found)

    def _kept(
        self,
        rows: Sequence[SampledRow],
        numbers: "_Numbers",
        tokens: Tensor,
        peaks: Tensor,
        logprobs: Tensor | None = None,
    ) -> Choice:
        self.next_ids.index_copy_(0, numbers.entries, tokens)
        return Choice(rows, tokens, peaks, logprobs)

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
        entries: the number of each row's entry.
        adjusted: see `Adjustments.apply`.
        listed: slot and counted tokens of each adjusted row.
        ways: rows by what their draws look at; None: greedy.
        asking: rows that ask for log probabilities.
        ruled: rows that cannot choose some tokens.
    """

    def __init__(self, rows: Sequence[SampledRow], ruled_out: RuledOut | None, next_ids: Tensor) -> None:
        adjusted: list[tuple[int, int, int, int, int]] = []
        nobody = len(next_ids) - 1
        for i, (entry, step, newest) in enumerate(rows):
            if entry.adjusted is not None:
                known = newest if entry.counts and newest is not None else -1
                unread = entry.number if entry.counts and newest is None else nobody
                adjusted.append((i, entry.adjusted, step, known, unread))
        ways: dict[Look | None, list[tuple[int, int, int]]] = {}
        for i, (entry, step, _) in enumerate(rows):
            ways.setdefault(entry.look, []).append((i, entry.number, step))
        asking = [i for i, row in enumerate(rows) if row.entry.top_logprobs is not None]
        blocks: list[list[int]] = [[row.entry.number for row in rows], _flat(adjusted)]
        blocks += [*map(_flat, ways.values()), asking]
        blocks.append([] if ruled_out is None else list(ruled_out.rows))
        flat = np.array([one for block in blocks for one in block], np.int64)
        whole = to_device(flat, next_ids.device)
        self.entries, first, *middle, asked, ruled = torch.split(whole, [len(block) for block in blocks])
        self.adjusted: Sequence[Tensor] | None = None
        if adjusted:
            *others, known_ids, unread_ids = first.view(NUMBERS + 1, -1)
            if any(row.newest is None for row in rows):
                known = known_ids
                known_ids = next_ids.index_select(0, unread_ids)
                if any(one[3] >= 0 for one in adjusted):
                    known_ids = torch.maximum(known, known_ids)
            self.adjusted = (*others, known_ids)
        self.listed = [
            (slot, step if known >= 0 or unread != nobody else 0) for _, slot, step, known, unread in adjusted
        ]
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
