"""Why a request ends."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from worker.engine.messages import FinishReason, TextEnd
from worker.engine.slot import Slot
from worker.engine.tokens.stopping import StopStrings, TextEnds

#: kinds of stops remembered
_MOST_STOPS = 256


class Endings:
    """Decides after each token whether a request has ended.

    Args:
        clock: seconds.
    """

    def __init__(
        self, eos_ids: Sequence[int], tokenizer: PreTrainedTokenizerBase, clock: Callable[[], float]
    ) -> None:
        self._eos = frozenset(eos_ids)
        self._tokenizer = tokenizer
        self._clock = clock
        self._stops: dict[tuple[str, ...], StopStrings] = {}
        self._ends: dict[TextEnd, TextEnds] = {}

    def reason(self, slot: Slot) -> FinishReason | None:
        """Why a request ended with its newest token; None if it goes on."""
        newest, request = slot.generated[-1], slot.request
        sampling = request.sampling
        if (newest in self._eos and not sampling.ignore_eos) or newest in sampling.stop_token_ids:
            return "stop"
        if self._says_stop(slot):
            return "stop"
        if slot.grammar is not None and slot.grammar.ended:
            return "stop"
        if len(slot.generated) >= request.most_generated:
            return "length"
        limit = math.inf if request.time_limit is None else request.time_limit
        return "timeout" if self._clock() - slot.started > limit else None

    def _says_stop(self, slot: Slot) -> bool:
        stops = tuple(slot.request.sampling.stop)
        if stops:
            if stops not in self._stops:
                _limit(self._stops)
                self._stops[stops] = StopStrings(stops, self._tokenizer)
            if self._stops[stops].ended(slot.generated):
                return True
        end = slot.request.stop_at
        if end is None:
            return False
        if end not in self._ends:
            _limit(self._ends)
            self._ends[end] = TextEnds(end, self._tokenizer)
        return self._ends[end].ended(slot.generated)


def _limit(known: dict[Any, Any]) -> None:
    """Forget all if they are many: a run may never end."""
    if len(known) >= _MOST_STOPS:
        known.clear()
