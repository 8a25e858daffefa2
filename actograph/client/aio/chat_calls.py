"""Conversations with a served model."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from actograph.client.aio.calls import Calls
from actograph.client.answers import read, read_text
from actograph.client.errors import ApiError
from actograph.client.event_stream import Parser
from actograph.contract.chat.chat_answers import ChatChunk, ChatCompletion
from actograph.contract.errors import NotFound

#: the service's own limit (`ACTOGRAPH_CHAT_TIMEOUT_SECONDS`) ends a request before this
CHAT_SECONDS = 3600.0
#: a comment comes every 15 s
SILENCE_SECONDS = 60.0

Messages = str | Sequence[Mapping[str, Any]]


class ChatCalls(Calls):
    """Chat completions, in OpenAI's form; see docs/openai.md for the fields."""

    async def chat(
        self, messages: Messages, *, model: str | None = None, timeout: float = CHAT_SECONDS, **fields: Any
    ) -> ChatCompletion:
        """Ask, and wait for the whole answer.

        Args:
            messages: what the user says, or the conversation so far.
            model: null takes the service's first one.
            timeout: seconds that the answer may take.
            fields: of the request: `max_tokens`, `temperature`, `seed`, `capture`, `tools`, ...

        Raises:
            ApiError: refused, or it failed; what was to be captured and could not be is a failure too.
        """
        body = await self._chat_body(messages, model, fields)
        answer = await self._transport.request(
            "POST", "/v1/chat/completions", json=body, repeatable=False, timeout=timeout
        )
        return read(ChatCompletion, answer)

    async def chat_stream(
        self, messages: Messages, *, model: str | None = None, **fields: Any
    ) -> AsyncIterator[ChatChunk]:
        """Ask, and read the answer while it is generated; whoever stops reading ends it.

        Takes and raises what `chat` does, also in the middle of an answer.
        """
        body = await self._chat_body(messages, model, fields) | {"stream": True}
        async with self._transport.stream(
            "/v1/chat/completions", method="POST", json=body, read_timeout=SILENCE_SECONDS
        ) as response:
            parser = Parser()
            async for line in response.aiter_lines():
                message = parser.feed(line)
                if message is None:
                    continue
                if message.data == "[DONE]":
                    return
                value = json.loads(message.data)
                if "error" in value:
                    error = value["error"]
                    raise ApiError(error["message"], status=500, code=error["code"], param=error["param"])
                yield read_text(ChatChunk, message.data)

    async def _chat_body(
        self, messages: Messages, model: str | None, fields: Mapping[str, Any]
    ) -> dict[str, Any]:
        if model is None:
            served = await self._own().models()
            if not served:
                raise NotFound("the service serves no model; start it with --model")
            model = served[0].id
        said = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        return {"model": model, "messages": said, **fields}
