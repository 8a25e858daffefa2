"""Logit bias, penalties of tokens that a request has already, and the least number of tokens.

OpenAI's formulas (platform.openai.com/docs/guides/text-generation, "Frequency and presence penalties"):
logit[t] + bias[t] - count[t] * frequency_penalty - (count[t] > 0) * presence_penalty, where count[t] is
how often the request has generated token t. The prompt's tokens do not count. For the repetition penalty
they do; its formula is that of Keskar et al. 2019 (arXiv 1909.05858), as in transformers and vLLM.

The tokens of a request whose logits change are listed in a row of a table: those of its bias, its ends, its
prompt, and each token once it is generated. The list is never longer than prompt and answer, so it takes less
memory than a count for each token of the vocabulary, and a pass changes a few logits instead of all.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from actograph.contract.specs import SamplingSpec
from worker.engine.model.host_memory import to_device
from worker.engine.tokens.table_rows import TableRows, widened

#: columns of the table: token id; bits of the bias, a float32; whether the repetition penalty applies from
#: the start; how often the token was generated; number of generated tokens from which on it may be chosen
_ID, _BIAS, _PROMPT, _COUNT, _FROM = range(5)
#: columns of a pass's numbers: row of the logits, slot, generated tokens, the newest one or -1
NUMBERS = 4
#: counted tokens of a request whose tokens do not count: more than it can have
_ENDLESS = 1 << 40
#: width of the table, at least
_LEAST_WIDTH = 64


def counts_tokens(sampling: SamplingSpec) -> bool:
    """Whether the tokens generated so far matter."""
    repeats = sampling.repetition_penalty != 1.0
    return bool(sampling.presence_penalty or sampling.frequency_penalty or repeats)


def adjusts(sampling: SamplingSpec) -> bool:
    """Whether any logit changes."""
    return bool(counts_tokens(sampling) or sampling.min_tokens or sampling.logit_bias)


class Adjustments:
    """Changes of logits, a slot for each request that asks for some.

    All of it is on the device. A request's row is written once, at its start; afterwards each pass adds the
    newest token to it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._slots = TableRows()
        self._table = torch.zeros(5, 0, _LEAST_WIDTH, dtype=torch.int32, device=device)
        # of each slot: repetition, presence and frequency penalty; listed tokens and counted tokens
        self._penalties = torch.zeros(3, 0, device=device)
        self._listed = torch.zeros(2, 0, dtype=torch.int64, device=device)
        self._first: dict[int, int] = {}  # tokens listed at the start, by slot

    def open(self, sampling: SamplingSpec, prompt: Sequence[int], most: int, ends: Sequence[int]) -> int:
        """A slot for a request.

        Args:
            most: tokens that it generates at most.
            ends: ids that end its generation.
        """
        ended = ends if sampling.min_tokens else ()
        repeated = prompt if sampling.repetition_penalty != 1.0 else ()
        ids = list(dict.fromkeys([*sampling.logit_bias, *ended, *repeated]))
        counts = counts_tokens(sampling)
        width = len(ids) + (most if counts else 0)
        counted = 0 if counts else _ENDLESS
        slot = self._slots.take()
        self._reserve(self._slots.size, width + 1)
        row = np.zeros((5, self._table.shape[2]), np.int32)
        listed = row[:, : len(ids)]
        listed[_ID] = ids
        listed[_BIAS] = np.array([sampling.logit_bias.get(one, 0.0) for one in ids], np.float32).view(
            np.int32
        )
        listed[_PROMPT] = np.isin(ids, repeated) if ids else 0
        listed[_FROM] = np.where(np.isin(ids, ended), sampling.min_tokens, 0) if ids else 0
        penalties = [sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty]
        self._table[:, slot].copy_(to_device(row, self._device))
        self._penalties[:, slot].copy_(to_device(np.array(penalties, np.float32), self._device))
        self._listed[:, slot].copy_(to_device(np.array([len(ids), counted]), self._device))
        self._first[slot] = len(ids)
        return slot

    def close(self, slot: int) -> None:
        """Free a slot."""
        del self._first[slot]
        self._slots.give(slot)

    def most_listed(self, slot: int, generated: int) -> int:
        """Listed tokens of a slot, at most."""
        return self._first[slot] + generated

    def apply(self, scores: Tensor, numbers: Sequence[Tensor], most: int) -> None:
        """Count the newest tokens, and change logits in place.

        A pass that is run again counts nothing twice.

        Args:
            scores: float32 [rows, vocabulary], contiguous.
            numbers: NUMBERS columns, int64 [changed rows] each, on the device.
            most: listed tokens of a slot, at most.
        """
        rows, slots, steps, newest = numbers
        width = min(-(-(most + 1) // _LEAST_WIDTH) * _LEAST_WIDTH, self._table.shape[2])
        table = self._table[:, :, :width].index_select(1, slots)
        listed, counted = self._listed.index_select(1, slots)
        place = torch.arange(width, device=self._device)

        fresh = steps > counted
        known = (table[_ID] == newest[:, None]) & (place < listed[:, None])
        at = torch.where(known.any(-1), known.int().argmax(-1), listed)[:, None]
        token = torch.where(fresh[:, None], newest[:, None].int(), table[_ID].gather(1, at))
        table[_ID].scatter_(1, at, token)
        count = table[_COUNT]
        count.scatter_add_(1, at, fresh[:, None].int())
        listed = listed + (fresh & ~known.any(-1)).long()
        where, written = (slots, at[:, 0]), count.gather(1, at)[:, 0]
        states = torch.stack([listed, torch.where(fresh, steps, counted)])
        self._table[_ID].index_put_(where, token[:, 0])
        self._table[_COUNT].index_put_(where, written)
        self._listed.index_copy_(1, slots, states)

        unused = place >= listed[:, None]
        ids = table[_ID].long()
        # each place that is not used yet repeats the first one, and so writes what that one writes
        ids = torch.where(unused, ids[:, :1], ids) + (rows * scores.shape[1])[:, None]
        flat = scores.view(-1)
        values = flat.take(ids) + table[_BIAS].view(torch.float32)
        repetition, presence, frequency = self._penalties.index_select(1, slots)[..., None]
        repeated = torch.where(values > 0, values / repetition, values * repetition)
        values = torch.where((table[_PROMPT] + count) > 0, repeated, values)
        values = values - torch.where(count > 0, presence + frequency * count, 0.0)
        values = values.masked_fill_(steps[:, None] < table[_FROM], -torch.inf)
        values = torch.where(unused, values[:, :1], values)
        flat.scatter_(0, ids.view(-1), values.view(-1))

    def _reserve(self, slots: int, width: int) -> None:
        """Make the tables as large as this."""
        _, have, wide = self._table.shape
        if slots > have or width > wide:
            more, wider = max(have, _above(slots)), max(wide, _above(width))
            table = self._table.new_zeros(5, more, wider)
            table[:, :have, :wide].copy_(self._table)
            self._table = table
        self._penalties = widened(self._penalties, slots)
        self._listed = widened(self._listed, slots)


def _above(size: int) -> int:
    """The power of two from `size` on, so that tables seldom grow."""
    return 1 << (size - 1).bit_length()
