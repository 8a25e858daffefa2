"""`client.chat`: conversations with a served model, in OpenAI's form; see docs/guides/openai.md."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from actograph.client.errors import ApiError
from actograph.client.keywords import require_known
from actograph.client.transport import LONG_SECONDS, APIResource, event_data, parse
from actograph.contract.errors import NotFound
from actograph.contract.job_options import capture_of, interventions_of
from actograph.contract.models import Model
from actograph.contract.openai import ChatCompletionRequest
from actograph.contract.openai_answers import ChatChunk, ChatCompletion

#: the service sends a comment every 15 s
SILENCE_SECONDS = 60.0

#: fields that the calls set
_FIXED = ("model", "messages", "stream")
Messages = str | Sequence[Mapping[str, Any]]


class Chat(APIResource, path="/v1/chat/completions"):
    """Chat completions: `client.chat("Hello")`, or `client.chat.stream("Hello")`."""

    def __call__(
        self, messages: Messages, *, model: str | None = None, timeout: float = LONG_SECONDS, **fields: Any
    ) -> ChatCompletion:
        """Return the complete answer.

        Args:
            messages: the user's message, or the conversation so far.
            model: None uses the first served model.
            timeout: seconds to wait for the answer.
            fields: request fields: `max_tokens`, `temperature`, `seed`, `tools`, ...; `capture` may be
                `POINTS@LAYERS`, such as `resid_post@all`, and `interventions` have items such as
                `truth@resid_post.12*15%@generated`.

        Raises:
            ApiError: the request was refused or failed, or its activations could not be captured.
        """
        require_known(self.__call__, fields, ChatCompletionRequest, fixed=_FIXED)
        body = self._body(messages, model, fields)
        return self._call(ChatCompletion, "POST", json=body, repeatable=False, timeout=timeout)

    def stream(self, messages: Messages, *, model: str | None = None, **fields: Any) -> Iterator[ChatChunk]:
        """Yield the answer while it is generated. Closing the iterator stops the generation.

        Takes the arguments of a plain call, and raises the same errors, also in the middle of an answer.
        """
        require_known(self.stream, fields, ChatCompletionRequest, fixed=_FIXED)
        body = self._body(messages, model, fields) | {"stream": True}
        with self._transport.stream("POST", self._path, json=body, read_timeout=SILENCE_SECONDS) as response:
            for text in event_data(response):
                if text == "[DONE]":
                    return
                error = json.loads(text).get("error")
                if error is not None:
                    raise ApiError(error["message"], status=500, code=error["code"], param=error["param"])
                yield parse(ChatChunk, text)

    def _body(self, messages: Messages, model: str | None, fields: Mapping[str, Any]) -> dict[str, Any]:
        if isinstance(fields.get("capture"), str):
            fields = {**fields, "capture": capture_of(fields["capture"])}
        if fields.get("interventions"):
            fields = {**fields, "interventions": interventions_of(fields["interventions"])}
        if model is None:
            served = next(self._transport.items(Model, "/v1/models"), None)
            if served is None:
                raise NotFound("the service serves no model; start it with --model")
            model = served.id
        listed = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        return {"model": model, "messages": listed, **fields}
