"""Server-Sent Events, parsed line by line as the HTML standard says.

https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Message:
    """One dispatched message. `id` is the last id seen so far, as the standard wants it."""

    id: str
    event: str
    data: str


def messages(lines: Iterable[str]) -> Iterator[Message]:
    """The messages of a stream; comments and messages without data are passed over."""
    event, data, last_id = "", list[str](), ""
    for line in lines:
        if not line:
            if data:
                yield Message(id=last_id, event=event or "message", data="\n".join(data))
            event, data = "", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            event = value
        elif field == "data":
            data.append(value)
        elif field == "id" and "\0" not in value:
            last_id = value
