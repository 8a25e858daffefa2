"""Text of growing token ids, as far as further tokens cannot change it or cut it off."""

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"  # what decoders put for an incomplete character


class TextStream:
    """Turns growing token ids into pieces of text; together they are the beginning of the final text.

    Tokens are decoded with a few earlier ones, since some decoders treat the first one differently. An
    incomplete character waits for its bytes, and a possible beginning of a stop string for more text. After a
    stop string there is no more text.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], stops: Sequence[str]) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._ids: list[int] = []
        #: ids before `_read` have been turned into text; decoding begins at `_context`
        self._context = self._read = 0
        self._held = ""
        self._stopped = False

    def feed(self, token_ids: Sequence[int]) -> str:
        """The further text that is now certain; may be empty."""
        self._ids += token_ids
        before = self._decode(self._ids[self._context : self._read])
        now = self._decode(self._ids[self._context :])
        if len(now) <= len(before) or now.endswith(REPLACEMENT):
            return ""
        self._context, self._read = self._read, len(self._ids)
        return self._certain(now[len(before) :])

    def _certain(self, text: str) -> str:
        if self._stopped:
            return ""
        self._held += text
        found = [place for stop in self._stops if (place := self._held.find(stop)) >= 0]
        keep = min(found, default=self._may_stop_at())
        self._stopped = bool(found)
        given, self._held = self._held[:keep], self._held[keep:]
        return given

    def _may_stop_at(self) -> int:
        """Start of an ending that may become a stop string; the text's length without one."""
        text = self._held
        for start in range(max(0, len(text) - max(map(len, self._stops), default=1) + 1), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                return start
        return len(text)
