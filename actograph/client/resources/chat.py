"""`client.chat`: conversations with a served model, in OpenAI's form; see docs/guides/openai.md."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from actograph.client.answers import read_text
from actograph.client.errors import ApiError
from actograph.client.event_stream import Parser
from actograph.client.transport import Resource
from actograph.contract.chat.chat_answers import ChatChunk, ChatCompletion
from actograph.contract.errors import NotFound
from actograph.contract.resources import Model

#: longer than the service's own limit (`ACTOGRAPH_CHAT_TIMEOUT_SECONDS`)
CHAT_SECONDS = 3600.0
#: the service sends a comment every 15 s
SILENCE_SECONDS = 60.0
_PATH = "/v1/chat/completions"

Messages = str | Sequence[Mapping[str, Any]]


class Chat(Resource):
    """Chat completions: `client.chat("Hello")`, or `client.chat.stream("Hello")`."""

    def __call__(
        self, messages: Messages, *, model: str | None = None, timeout: float = CHAT_SECONDS, **fields: Any
    ) -> ChatCompletion:
        """Return the complete answer.

        Args:
            messages: the user's message, or the conversation so far.
            model: None uses the first served model.
            timeout: seconds to wait for the answer.
            fields: request fields: `max_tokens`, `temperature`, `seed`, `capture`, `tools`, ...

        Raises:
            ApiError: the request was refused or failed, or its activations could not be captured.
        """
        body = self._body(messages, model, fields)
        return self._transport.call(
            ChatCompletion, "POST", _PATH, json=body, repeatable=False, timeout=timeout
        )

    def stream(self, messages: Messages, *, model: str | None = None, **fields: Any) -> Iterator[ChatChunk]:
        """Yield the answer while it is generated. Closing the iterator stops the generation.

        Takes the arguments of a plain call, and raises the same errors, also in the middle of an answer.
        """
        body = self._body(messages, model, fields) | {"stream": True}
        with self._transport.stream(
            _PATH, method="POST", json=body, read_timeout=SILENCE_SECONDS
        ) as response:
            parser = Parser()
            for line in response.iter_lines():
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

    def _body(self, messages: Messages, model: str | None, fields: Mapping[str, Any]) -> dict[str, Any]:
        if model is None:
            served = self._transport.collect(Model, "/v1/models")
            if not served:
                raise NotFound("the service serves no model; start it with --model")
            model = served[0].id
        listed = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        return {"model": model, "messages": listed, **fields}
