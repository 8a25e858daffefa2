"""End of each row of a batch: end tokens, stop strings, max_tokens, time limit, cancellation."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, StoppingCriteria

from worker.engine.requests import FinishReason, TextEnd


class StopStrings:
    """Checks whether a row's text contains a stop string.

    The text is the generated tokens', special tokens included. Only the last few tokens are
    decoded: every token carries at least one byte, so a match that the newest token completes
    lies within as many tokens as the longest stop string has bytes.
    """

    def __init__(self, stops: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
        self._stops = tuple(stops)
        self._tokenizer = tokenizer
        self._window = max(len(s.encode()) for s in stops) + 4
        # A match ends in the newest token, which therefore holds the last character of a stop
        # string, or a piece of it. Decoders may drop white space at the edge of a lone token.
        self._endings = {s[-1] for s in stops}
        self._always = any(s[-1].isspace() for s in stops)
        self._may_end: dict[int, bool] = {}

    def ended(self, generated: Sequence[int]) -> bool:
        last = generated[-1]
        may_end = self._may_end.get(last)
        if may_end is None:
            piece = self._decode([last])
            may_end = self._always or "\ufffd" in piece or any(c in piece for c in self._endings)
            self._may_end[last] = may_end
        if not may_end:
            return False
        text = self._decode(generated[-self._window :])
        return any(stop in text for stop in self._stops)

    def _decode(self, ids: Sequence[int]) -> str:
        return decode_exactly(self._tokenizer, ids)


class TextEnds:
    """Checks whether a row's text ends as a `TextEnd` describes."""

    def __init__(self, end: TextEnd, tokenizer: PreTrainedTokenizerBase) -> None:
        self._end = end
        self._tokenizer = tokenizer
        self._may_end: dict[int, bool] = {}

    def ended(self, generated: Sequence[int]) -> bool:
        last = generated[-1]
        may_end = self._may_end.get(last)
        if may_end is None:
            may_end = self._may_end[last] = decode_exactly(self._tokenizer, [last]).endswith(self._end.last)
        if not may_end:
            return False
        text = decode_exactly(self._tokenizer, generated[-self._end.window :])
        return self._end.pattern.search(text) is not None


def decode_exactly(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of tokens, special ones included."""
    text = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


class RowTracker(StoppingCriteria):
    """Records the tokens of each row and tells transformers when to stop.

    Runs once per step, after the token was chosen. Reading the tokens on the host costs one
    small copy per step; transformers waits for the device at the same place anyway.

    Attributes:
        tokens: generated ids per row, up to and with the one that ended it.
        ended_at: number of tokens after which a row ended; None while it is running.
        reasons: why it ended.
        cancelled: `should_stop` returned True.
    """

    def __init__(
        self,
        *,
        rows: int,
        max_tokens: int,
        eos_ids: Sequence[int],
        stops: StopStrings | None,
        should_stop: Callable[[], bool],
        on_step: Callable[[int], None] | None,
        device: torch.device,
        time_limit: float | None = None,
        limits: Sequence[int] | None = None,
        should_drop: Callable[[int], bool] | None = None,
        own_stops: Sequence[TextEnds | None] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            time_limit: seconds from now after which the rows that still run are ended.
            limits: most tokens of each row; None: `max_tokens` for all.
            own_stops: of each row, beside `stops`; empty where no row has any.
            should_drop: polled for each running row; True ends it and leaves the others alone.
        """
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self.ended_at: list[int | None] = [None] * rows
        self.reasons: list[FinishReason] = ["length"] * rows
        self.cancelled = False
        self._running = list(range(rows))
        self._limits = limits or [max_tokens] * rows
        self._should_drop = should_drop
        self._eos = frozenset(eos_ids)
        self._stops = stops
        self._own_stops = own_stops
        self._should_stop = should_stop
        self._on_step = on_step
        self._steps = 0
        self._clock = clock
        self._ends_at = math.inf if time_limit is None else clock() + time_limit
        self._done = torch.zeros(rows, dtype=torch.bool, device=device)

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **_: Any) -> torch.BoolTensor:  # bool [rows]
        newest = input_ids[:, -1].tolist()
        self._steps += 1
        ended: list[int] = []
        is_late = self._clock() > self._ends_at
        for row in self._running:
            token = newest[row]
            tokens = self.tokens[row]
            tokens.append(token)
            if token in self._eos or self._says_stop(row):
                self.reasons[row] = "stop"
            elif self._steps >= self._limits[row]:
                pass
            elif is_late:
                self.reasons[row] = "timeout"
            elif self._should_drop is not None and self._should_drop(row):
                self.reasons[row] = "dropped"
            else:
                continue
            self.ended_at[row] = self._steps
            ended.append(row)
        if ended:
            self._running = [row for row in self._running if row not in ended]
            self._done = torch.tensor(
                [end is not None for end in self.ended_at], dtype=torch.bool, device=self._done.device
            )
        if self._on_step is not None:
            self._on_step(self._steps)
        if self._running and self._should_stop():
            self.cancelled = True
            for row in self._running:
                self.reasons[row] = "cancelled"
            self._running = []
            self._done = torch.ones_like(self._done)
        return self._done  # type: ignore[return-value]

    def _says_stop(self, row: int) -> bool:
        tokens = self.tokens[row]
        if self._stops is not None and self._stops.ended(tokens):
            return True
        own = self._own_stops[row] if self._own_stops else None
        return own is not None and own.ended(tokens)
