"""Ends of a text: stop strings, and patterns at its end."""

import re
from collections.abc import Callable, Sequence

from transformers import PreTrainedTokenizerBase

from worker.engine.messages import TextEnd
from worker.text.tokenizer import decode_exactly


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
        pattern = re.compile(end.pattern)
        super().__init__(
            tokenizer,
            end.window,
            may_complete=lambda piece: piece.endswith(end.last),
            matches=lambda text: pattern.search(text) is not None,
        )
