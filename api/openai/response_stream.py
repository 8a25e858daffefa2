"""Answer a response as events while it is generated, in the order of OpenAI's.

The order: the response is created and in progress; each item is added, then its parts or arguments, then it
is done; the response is completed, or incomplete.
"""

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from actograph.contract.errors import ActographError
from actograph.contract.openai_answers import ChatCompletion
from api.errors import openai_error
from api.openai import chat_results, response_answers
from api.openai.chat_stream import PING, SentText
from api.openai.chat_watch import Running
from api.openai.response_answers import OutputCall, OutputMessage, OutputText, Response
from api.openai.response_requests import ResponseRequest


async def stream(running: Running, request: ResponseRequest) -> AsyncGenerator[str, None]:
    """Yield the events of one request. The job is cancelled if the reader stops.

    Raises:
        ActographError: the request failed before the first event; later it is an event.
    """
    row, has_sent = running.samples[0], False
    sent, events = SentText(row, 0), _Events(running, request)
    try:
        async with aclosing(running.pieces(texts=True)) as pieces:
            async for found in pieces:
                said = found[1] if found is not None and isinstance(found[1], str) else ""
                for event in [PING] if found is None else events.text(sent.more(said)):
                    has_sent = True
                    yield event
        chat = await run_in_threadpool(chat_results.read, running.services, running.job.id)
        assert isinstance(chat, ChatCompletion)
        for event in events.end(response_answers.ended(request, chat), sent):
            has_sent = True
            yield event
    except ActographError as error:
        if not has_sent:
            raise
        yield events.failure(error)


class _Events:
    """Makes the events of one answer."""

    def __init__(self, running: Running, request: ResponseRequest) -> None:
        envelope = chat_results.envelope(running.job, running.samples[0])
        fields = {name: envelope[name] for name in ("run_id", "created", "model")}
        self._begun = response_answers.begun(request, **fields)
        self._message = response_answers.message(self._begun.run_id, "in_progress", [])
        #: of the message's events
        self._place = {"item_id": self._message.id, "output_index": 0, "content_index": 0}
        self._count = 0
        self._is_open = False

    def text(self, said: str) -> Iterator[str]:
        """Begin if it has not begun, and send more text of the message."""
        if not self._count:
            for kind in ("response.created", "response.in_progress"):
                yield self._event(kind, response=self._begun)
        if said:
            yield from self._open_message()
            yield self._event("response.output_text.delta", **self._place, delta=said, logprobs=[])

    def end(self, response: Response, sent: SentText) -> Iterator[str]:
        """Send the rest of the text, the calls, and the whole response.

        Raises:
            ActographError: the text does not begin with the sent part.
        """
        for place, item in enumerate(response.output):
            if isinstance(item, OutputMessage):
                yield from self.text(sent.rest(item.content[0].text))
                yield from self._close_message(item)
            else:
                yield from self.text("")
                yield from self._call(item, place)
        yield self._event(f"response.{response.status}", response=response)

    def failure(self, error: ActographError) -> str:
        """An error in the middle. `openai` raises it by its member `error`."""
        shown = openai_error(error, 500)
        fields = {"code": shown.code, "message": shown.message, "param": shown.param}
        return self._event("error", **fields, error=shown)

    def _open_message(self) -> Iterator[str]:
        if self._is_open:
            return
        self._is_open = True
        yield self._event("response.output_item.added", output_index=0, item=self._message)
        yield self._event("response.content_part.added", **self._place, part=OutputText(text=""))

    def _close_message(self, item: OutputMessage) -> Iterator[str]:
        yield from self._open_message()
        (part,) = item.content
        done = {"text": part.text, "logprobs": part.logprobs}
        yield self._event("response.output_text.done", **self._place, **done)
        yield self._event("response.content_part.done", **self._place, part=part)
        yield self._event("response.output_item.done", output_index=0, item=item)

    def _call(self, item: OutputCall, place: int) -> Iterator[str]:
        """A whole call; calls are not streamed in pieces."""
        added = item.model_copy(update={"status": "in_progress", "arguments": ""})
        at = {"item_id": item.id, "output_index": place}
        yield self._event("response.output_item.added", output_index=place, item=added)
        yield self._event("response.function_call_arguments.delta", **at, delta=item.arguments)
        done = {"name": item.name, "arguments": item.arguments}
        yield self._event("response.function_call_arguments.done", **at, **done)
        yield self._event("response.output_item.done", output_index=place, item=item)

    def _event(self, kind: str, **fields: Any) -> str:
        shown = {
            name: value.model_dump(mode="json") if isinstance(value, BaseModel) else value
            for name, value in fields.items()
        }
        value = {"type": kind, "sequence_number": self._count, **shown}
        self._count += 1
        return f"event: {kind}\ndata: {json.dumps(value, separators=(',', ':'))}\n\n"
