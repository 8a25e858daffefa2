"""Answers as Server-Sent Events, in the chunks of OpenAI's streams.

Text is sent while it is generated. The end (finish reasons, tool calls, activations, usage) comes from the
index, as without a stream. Every piece of text is sent once: if a killed worker is replaced, the stream
continues.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from actograph.contract import openai_answers as answers
from actograph.contract.errors import ActographError
from actograph.contract.readouts import TokenReadouts
from actograph.contract.tool_calls import OPEN, first_call
from api.errors import openai_error
from api.openai import chat_results
from api.openai.chat_watch import Running
from storage.tables.models import SampleRow

PING = ": ping\n\n"
DONE = "data: [DONE]\n\n"


async def stream(running: Running, *, include_usage: bool) -> AsyncGenerator[str, None]:
    """Yield the events of one request, up to `[DONE]`. The job is cancelled if the reader stops.

    Raises:
        ActographError: the request failed.
    """
    job, rows = running.job, running.samples
    is_chat, envelope = chat_results.is_chat(rows[0]), chat_results.envelope(job, rows[0])
    choices = [SentText(row, place) for place, row in enumerate(rows)]

    def event(*choices: BaseModel, **fields: Any) -> str:
        chunk: Any = answers.ChatChunk if is_chat else answers.Completion
        value = chunk(choices=choices, **envelope, **fields).model_dump(mode="json")
        if not include_usage:
            del value["usage"]  # with include_usage all chunks but the last have null
        return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"

    first = answers.Delta(role="assistant", content="")
    opening = [event(answers.ChatChunkChoice(index=one.place, delta=first)) for one in choices if is_chat]
    async with aclosing(running.pieces(texts=True, readouts=True)) as pieces:
        async for found in pieces:
            if found is None:
                yield PING
                continue
            # before the first text an error is an answer of its own
            while opening:
                yield opening.pop(0)
            place, piece = found
            if isinstance(piece, list):
                yield event(_values(place, piece, is_chat=is_chat))
            elif said := choices[place].more(piece):
                yield event(_piece(place, said, is_chat=is_chat))
    whole = await run_in_threadpool(chat_results.read, running.services, job.id)
    for start in opening:
        yield start
    ended: Sequence[answers.ChatChoice | answers.CompletionChoice] = whole.choices
    for sent, choice in zip(choices, ended, strict=True):
        *before, last = _ending(sent, choice)
        for one in before:
            yield event(one)
        # activations of the first choice belong to the answer too
        yield event(last, **({} if sent.place else _captured(whole)))
    if include_usage:
        yield event(usage=whole.usage)
    yield DONE


async def guarded(first: str, events: AsyncGenerator[str, None]) -> AsyncIterator[str]:
    """Continue a started stream; later errors are sent as events, as by OpenAI."""
    async with aclosing(events):
        yield first
        try:
            async for event in events:
                yield event
        except ActographError as error:
            yield f"data: {json.dumps({'error': openai_error(error, 500).model_dump()})}\n\n"


def _piece(place: int, text: str, logprobs: Any = None, *, is_chat: bool) -> BaseModel:
    if is_chat:
        return answers.ChatChunkChoice(index=place, delta=answers.Delta(content=text), logprobs=logprobs)
    return answers.CompletionChoice(index=place, text=text, logprobs=logprobs)


def _values(place: int, values: list[TokenReadouts], *, is_chat: bool) -> BaseModel:
    """A chunk with values of readouts and without text."""
    if is_chat:
        return answers.ChatChunkChoice(index=place, delta=answers.Delta(), token_readouts=values)
    return answers.CompletionChoice(index=place, text="", token_readouts=values)


def _ending(sent: "SentText", choice: answers.ChatChoice | answers.CompletionChoice) -> list[BaseModel]:
    """The choices to send at the end: the unsent text, tool calls, and the finish reason.

    With log probabilities, all text is unsent.
    """
    place, is_chat = sent.place, not isinstance(choice, answers.CompletionChoice)
    text = choice.text if isinstance(choice, answers.CompletionChoice) else choice.message.content
    rest = sent.rest(text or "")
    found = [_piece(place, rest, choice.logprobs, is_chat=is_chat)] if rest else []
    if isinstance(choice, answers.CompletionChoice):
        return [*found, choice.model_copy(update={"text": "", "logprobs": None})]
    calls = [
        answers.ToolCallDelta(index=number, id=call.id, function=call.function)
        for number, call in enumerate(choice.message.tool_calls or ())
    ]
    if calls:
        found.append(answers.ChatChunkChoice(index=place, delta=answers.Delta(tool_calls=calls)))
    reason = choice.finish_reason
    last = answers.ChatChunkChoice(
        index=place, delta=answers.Delta(), finish_reason=reason, **_captured(choice)
    )
    return [*found, last]


def _captured(answer: answers.Captured) -> dict[str, Any]:
    return answer.model_dump(include=set(answers.Captured.model_fields))


class SentText:
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
