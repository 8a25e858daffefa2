"""Server-Sent Events, parsed line by line as the HTML standard says.

https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from dataclasses import dataclass, field

LAST_EVENTS = frozenset({"job.completed", "job.failed", "job.cancelled"})


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message. `id` is the last id received, as in the standard."""

    id: str
    event: str
    data: str


@dataclass
class Parser:
    """Parses lines to messages, without I/O: both clients use it."""

    _event: str = ""
    _data: list[str] = field(default_factory=list)
    _last_id: str = ""

    def feed(self, line: str) -> Message | None:
        """Add a line. Returns the completed message, if any; skips comments and empty messages."""
        if not line:
            event, data = self._event, self._data
            self._event, self._data = "", []
            return Message(id=self._last_id, event=event or "message", data="\n".join(data)) if data else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self._last_id = value
        return None
