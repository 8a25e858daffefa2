"""End of each row of a batch: end tokens, stop strings, max_tokens, time limit, cancellation."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, StoppingCriteria

from worker.engine.requests import FinishReason, TextEnd


class _TextWatch:
    """Checks a row's text after each token.

    The text is that of the generated tokens, special ones included. Only the last `window` tokens are
    decoded, and only if the newest one may complete a match.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        window: int,
        *,
        may_complete: Callable[[str], bool],
        matches: Callable[[str], bool],
    ) -> None:
        self._tokenizer = tokenizer
        self._window = window
        self._may_complete = may_complete
        self._matches = matches
        self._known: dict[int, bool] = {}  # token id -> whether it may complete a match

    def ended(self, generated: Sequence[int]) -> bool:
        last = generated[-1]
        if last not in self._known:
            self._known[last] = self._may_complete(decode_exactly(self._tokenizer, [last]))
        if not self._known[last]:
            return False
        return self._matches(decode_exactly(self._tokenizer, generated[-self._window :]))


class StopStrings(_TextWatch):
    """Checks whether a row's text contains a stop string."""

    def __init__(self, stops: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> None:
        # The newest token holds the last character of a match, or a piece of it. Decoders may drop white
        # space at the edge of a lone token.
        endings = {stop[-1] for stop in stops}
        always = any(ending.isspace() for ending in endings)
        super().__init__(
            tokenizer,
            # a token has a byte at least
            max(len(stop.encode()) for stop in stops) + 4,
            may_complete=lambda piece: always or "\ufffd" in piece or any(end in piece for end in endings),
            matches=lambda text: any(stop in text for stop in stops),
        )


class TextEnds(_TextWatch):
    """Checks whether a row's text ends as a `TextEnd` describes."""

    def __init__(self, end: TextEnd, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(
            tokenizer,
            end.window,
            may_complete=lambda piece: piece.endswith(end.last),
            matches=lambda text: end.pattern.search(text) is not None,
        )


def decode_exactly(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of tokens, special ones included."""
    text = tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


class RowTracker(StoppingCriteria):
    """Records the tokens of each row and tells transformers when to stop.

    Runs once per step, after the tokens were chosen. It copies them to the host, where transformers waits
    for the device anyway.

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
            own_stops: further ends of each row; empty if no row has any.
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
