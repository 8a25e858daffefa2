"""Answers as Server-Sent Events, in the chunks of OpenAI's streams.

Text is sent while it is generated. The end (finish reasons, tool calls, activations, usage) comes from the
index, as without a stream. Every piece of text is sent once: if a killed worker is replaced, the stream
continues.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from actograph.contract import openai_answers as answers
from actograph.contract.errors import ActographError
from actograph.tool_calls import OPEN, first_call
from api.openai import chat_results
from api.openai.chat_results import ChatResult
from api.openai.chat_watch import Running
from storage.tables.models import SampleRow

PING = ": ping\n\n"
DONE = "data: [DONE]\n\n"


class ChatChunks:
    """Choices in the chunks of `/v1/chat/completions`."""

    prefix = "chatcmpl"
    chunk = answers.ChatChunk

    def opening(self, index: int) -> list[BaseModel]:
        """The choices to send before the text."""
        return [answers.ChatChunkChoice(index=index, delta=answers.Delta(role="assistant", content=""))]

    def piece(self, index: int, text: str, logprobs: Any = None) -> BaseModel:
        return answers.ChatChunkChoice(index=index, delta=answers.Delta(content=text), logprobs=logprobs)

    def ending(self, result: ChatResult, row: SampleRow, sent: "_Choice") -> list[BaseModel]:
        """The choices to send at the end: the unsent text, tool calls, and the finish reason.

        With log probabilities, all text is unsent.
        """
        choice, place = chat_results.chat_choice(result, row), sent.place
        rest = sent.rest(choice.message.content or "")
        found = [self.piece(place, rest, choice.logprobs)] if rest else []
        calls = [
            answers.ToolCallDelta(index=number, id=call.id, function=call.function)
            for number, call in enumerate(choice.message.tool_calls or ())
        ]
        if calls:
            found.append(answers.ChatChunkChoice(index=place, delta=answers.Delta(tool_calls=calls)))
        last = answers.ChatChunkChoice(
            index=place, delta=answers.Delta(), finish_reason=choice.finish_reason, **_captured(choice)
        )
        return [*found, last]


class CompletionChunks:
    """Choices in the chunks of `/v1/completions`; its methods are those of `ChatChunks`."""

    prefix = "cmpl"
    chunk = answers.Completion

    def opening(self, index: int) -> list[BaseModel]:
        return []

    def piece(self, index: int, text: str, logprobs: Any = None) -> BaseModel:
        return answers.CompletionChoice(index=index, text=text, logprobs=logprobs)

    def ending(self, result: ChatResult, row: SampleRow, sent: "_Choice") -> list[BaseModel]:
        choice = chat_results.completion_choice(result, row, sent.place)
        rest = sent.rest(choice.text)
        found = [self.piece(sent.place, rest, choice.logprobs)] if rest else []
        last = answers.CompletionChoice(
            index=sent.place, text="", finish_reason=choice.finish_reason, **_captured(choice)
        )
        return [*found, last]


Chunks = ChatChunks | CompletionChunks


async def stream(running: Running, chunks: Chunks, *, include_usage: bool) -> AsyncGenerator[str, None]:
    """Yield the events of one request, up to `[DONE]`. The job is cancelled if the reader stops.

    Raises:
        ActographError: the request failed.
    """
    envelope = chat_results.envelope(running.job, chunks.prefix)
    choices = [_Choice(row, place) for place, row in enumerate(running.samples)]

    def event(choices: list[Any], **fields: Any) -> str:
        value = chunks.chunk(choices=choices, **envelope, **fields).model_dump(mode="json")
        if not include_usage:
            del value["usage"]  # with include_usage all chunks but the last have null
        return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"

    opening = [event([first]) for choice in choices for first in chunks.opening(choice.place)]
    async with aclosing(running.pieces(texts=True)) as pieces:
        async for found in pieces:
            if found is None:
                yield PING
                continue
            # before the first text an error is an answer of its own
            while opening:
                yield opening.pop(0)
            place, text = found
            if said := choices[place].more(text):
                yield event([chunks.piece(place, said)])
    result = await run_in_threadpool(chat_results.read, running.services, running.job.id)
    for first in opening:
        yield first
    for choice, row in zip(choices, result.samples, strict=True):
        ending = chunks.ending(result, row, choice)
        for one in ending[:-1]:
            yield event([one])
        # activations of the first choice belong to the answer too
        yield event(ending[-1:], **({} if choice.place else _captured(ending[-1])))
    if include_usage:
        yield event([], usage=result.usage)
    yield DONE


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


def _captured(choice: BaseModel) -> dict[str, Any]:
    return choice.model_dump(include=set(answers.Captured.model_fields))


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
