"""Answers as Server-Sent Events, in the chunks of OpenAI's streams.

Text is sent while it is generated. The end (finish reasons, tool calls, activations, usage) comes from the
index, as without a stream. Every piece of text is sent once: if a killed worker is replaced, the stream
continues.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import anyio
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from actograph.contract.chat import chat_answers as answers
from actograph.contract.chat.tool_calls import OPEN, first_call
from actograph.contract.errors import ActographError
from api.openai import chat_results
from api.openai.chat_results import ChatResult
from api.openai.chat_waiting import Running, cancel
from storage.tables.models import SampleRow

PING_SECONDS = 15.0
PING = ": ping\n\n"
DONE = "data: [DONE]\n\n"


class ChatChunks:
    """Chunks of `/v1/chat/completions`."""

    prefix = "chatcmpl"

    def first(self, index: int) -> BaseModel | None:
        """The choice to send before its text, if any."""
        return answers.ChatChunkChoice(index=index, delta=answers.Delta(role="assistant", content=""))

    def piece(self, index: int, text: str, logprobs: Any = None) -> BaseModel:
        delta = answers.Delta(content=text)
        return answers.ChatChunkChoice(index=index, delta=delta, logprobs=logprobs)

    def logprobs(self, result: ChatResult, row: SampleRow) -> Any:
        """Log probabilities of the whole text, which is then sent in one piece."""
        return chat_results.chat_choice(result, row).logprobs

    def whole(self, row: SampleRow) -> str:
        """All text of a choice."""
        return chat_results.split_answer(row)[0] or ""

    def last(self, result: ChatResult, row: SampleRow, index: int) -> list[BaseModel]:
        """The choices to send after the text; the last has the finish reason."""
        choice = chat_results.chat_choice(result, row)
        calls = [
            answers.ToolCallDelta(index=place, id=call.id, function=call.function)
            for place, call in enumerate(choice.message.tool_calls or [])
        ]
        captured = choice.model_dump(include=set(answers.Captured.model_fields))
        end = answers.ChatChunkChoice(
            index=index,
            delta=answers.Delta(),
            finish_reason=choice.finish_reason,
            **captured,
        )
        if not calls:
            return [end]
        return [answers.ChatChunkChoice(index=index, delta=answers.Delta(tool_calls=calls)), end]

    def chunk(self, choices: list[Any], envelope: dict[str, Any]) -> BaseModel:
        return answers.ChatChunk(choices=choices, **envelope)


class CompletionChunks:
    """Chunks of `/v1/completions`; its methods are those of `ChatChunks`."""

    prefix = "cmpl"

    def first(self, index: int) -> BaseModel | None:
        return None

    def piece(self, index: int, text: str, logprobs: Any = None) -> BaseModel:
        return answers.CompletionChunkChoice(index=index, text=text, logprobs=logprobs)

    def logprobs(self, result: ChatResult, row: SampleRow) -> Any:
        return chat_results.completion_choice(result, row, 0).logprobs

    def whole(self, row: SampleRow) -> str:
        return chat_results.whole_text(row)

    def last(self, result: ChatResult, row: SampleRow, index: int) -> list[BaseModel]:
        choice = chat_results.completion_choice(result, row, index)
        captured = choice.model_dump(include=set(answers.Captured.model_fields))
        end = answers.CompletionChunkChoice(
            index=index, text="", finish_reason=choice.finish_reason, **captured
        )
        return [end]

    def chunk(self, choices: list[Any], envelope: dict[str, Any]) -> BaseModel:
        return answers.CompletionChunk(choices=choices, **envelope)


Chunks = ChatChunks | CompletionChunks


async def stream(running: Running, chunks: Chunks, *, include_usage: bool) -> AsyncGenerator[str, None]:
    """Yield the events of one request, up to `[DONE]`. The job is cancelled if the reader stops.

    Raises:
        ActographError: the request failed.
    """
    envelope = chat_results.envelope(running.job, chunks.prefix)
    choices = [_Choice(row, place) for place, row in enumerate(running.samples)]
    firsts = [first for choice in choices if (first := chunks.first(choice.place))]
    opening = [_event(chunks.chunk([first], envelope), include_usage) for first in firsts]
    has_ended = False
    try:
        began = False
        async for found in _pieces(running):
            if found is None:
                yield PING
                continue
            if not began:
                began = True
                for event in opening:
                    yield event
            place, text = found
            if said := choices[place].more(text):
                yield _event(chunks.chunk([chunks.piece(place, said)], envelope), include_usage)
        has_ended = True
        result = await run_in_threadpool(chat_results.read, running.services, running.job.id)
        if not began:
            for event in opening:
                yield event
        for choice, row in zip(choices, result.samples, strict=True):
            if rest := choice.rest(chunks.whole(row)):
                piece = chunks.piece(choice.place, rest, chunks.logprobs(result, row))
                yield _event(chunks.chunk([piece], envelope), include_usage)
            for last in chunks.last(result, row, choice.place):
                yield _event(chunks.chunk([last], envelope | _shown(last, choice.place)), include_usage)
        if include_usage:
            yield _event(chunks.chunk([], envelope | {"usage": result.usage}), include_usage)
        yield DONE
    finally:
        if not has_ended:
            with anyio.CancelScope(shield=True):
                await run_in_threadpool(cancel, running.services, running.job.id)


async def guarded(first: str, events: AsyncGenerator[str, None]) -> AsyncIterator[str]:
    """Continue a started stream; later errors are sent as events, as by OpenAI."""
    yield first
    try:
        async for event in events:
            yield event
    except ActographError as error:
        told = {"message": error.message, "type": "server_error", "param": error.param, "code": error.code}
        yield f"data: {json.dumps({'error': told})}\n\n"
    finally:
        await events.aclose()


async def _pieces(running: Running) -> AsyncIterator[tuple[int, str] | None]:
    """Yield pieces of text until the job has ended; None after a while without text."""
    ended = asyncio.create_task(running.ends.wait(running.job.id))
    try:
        with running.texts.follow([row.id for row in running.samples]) as feed:
            while True:
                next_one = asyncio.create_task(feed.get())
                try:
                    await asyncio.wait({ended, next_one}, timeout=PING_SECONDS, return_when="FIRST_COMPLETED")
                finally:
                    if not next_one.done():
                        next_one.cancel()
                if next_one.done() and not next_one.cancelled():
                    yield next_one.result()
                elif ended.done():
                    ended.result()
                    return
                else:
                    yield None
    finally:
        ended.cancel()


def _shown(last: BaseModel, place: int) -> dict[str, Any]:
    """Activations of the first choice, which belong to the answer too."""
    if place or not isinstance(last, answers.Captured):
        return {}
    return last.model_dump(include=set(answers.Captured.model_fields))


def _event(chunk: BaseModel, include_usage: bool) -> str:
    value = chunk.model_dump(mode="json")
    if not include_usage:
        del value["usage"]  # with include_usage all chunks but the last have null
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"


class _Choice:
    """Text of one choice that was sent."""

    def __init__(self, row: SampleRow, place: int) -> None:
        self.place = place
        self._calls = bool(row.input.get("tools"))
        self._text = ""
        self._sent = 0

    def more(self, text: str) -> str:
        """Add text, and return the part to send; text that may become a tool call waits."""
        self._text += text
        upto = self._may_call_at() if self._calls else len(self._text)
        said, self._sent = self._text[self._sent : upto], max(self._sent, upto)
        return said

    def rest(self, whole: str) -> str:
        """Return the unsent part of the final text.

        Raises:
            ActographError: the text does not begin with the sent part.
        """
        sent = self._text[: self._sent]
        if not whole.startswith(sent):
            raise ActographError("the text differed when the request was run again; send the request again")
        return whole[len(sent) :]

    def _may_call_at(self) -> int:
        """Position where a call starts or may start, without the white space before it."""
        text = self._text[: first_call(self._text)]
        for size in range(min(len(OPEN) - 1, len(text)), 0, -1):
            if OPEN.startswith(text[-size:]):
                text = text[:-size]
                break
        return len(text.rstrip())
