"""`client.models`, `client.workers` and `client.queue`."""

import builtins
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from actograph.client.aio.transport import Resource
from actograph.client.answers import path_of
from actograph.client.queries import LONG_SECONDS
from actograph.contract import resources
from actograph.contract.tokens import Detokenized, Tokenized


class Models(Resource):
    """List, load and inspect models."""

    async def list(self) -> builtins.list[resources.Model]:
        """List the served models."""
        return await self._transport.collect(resources.Model, "/v1/models")

    async def load(self, model: str, **options: Any) -> resources.ModelLoad:
        """Ask a worker to load a served model; poll it with `get_load`.

        Args:
            options: `revision`, `dtype`, `device_map`, `max_memory`, `attn_implementation`,
                `savepoints`; see docs/guides/models.md. `wait=True` returns once the model is loaded.

        Raises:
            ApiError: with `wait`, the model was refused.
        """
        body = {"model_id": model} | options
        timeout = LONG_SECONDS if options.get("wait") else None
        return await self._transport.call(
            resources.ModelLoad, "POST", "/v1/models/load", json=body, timeout=timeout
        )

    async def get_load(self, load_id: str) -> resources.ModelLoad:
        """Return the state of a model load."""
        return await self._transport.call(resources.ModelLoad, "GET", path_of("/v1/models/load", load_id))

    async def structure(self, model: str | None = None) -> resources.ModelStructure:
        """Return layers, widths and hook points of a loaded model."""
        return await self._transport.call(
            resources.ModelStructure, "GET", "/v1/model/structure", params={"model": model}
        )

    async def tokenize(
        self,
        text: str | Sequence[Mapping[str, Any]],
        model: str | None = None,
        *,
        texts: bool = False,
        **fields: Any,
    ) -> Tokenized:
        """Return the tokens of a text or a conversation, as a job would read it.

        Args:
            model: None uses the model loaded last.
            texts: return the text of each token too, as `token_strs`.
            fields: `add_special_tokens`, `add_generation_prompt`, `enable_thinking`, `tools`.

        Raises:
            ApiError: no worker has loaded the model yet, or it has no chat template.
        """
        given = {"prompt": text} if isinstance(text, str) else {"messages": list(text)}
        body = {"model": model, "return_token_strs": texts, **given, **fields}
        return await self._transport.call(Tokenized, "POST", "/v1/tokenize", json=body)

    async def detokenize(self, tokens: Iterable[int], model: str | None = None) -> str:
        """Return the text of token ids, with special tokens."""
        body = {"model": model, "tokens": [int(token) for token in tokens]}
        return (await self._transport.call(Detokenized, "POST", "/v1/detokenize", json=body)).prompt


class Workers(Resource):
    """List workers."""

    async def list(self) -> builtins.list[resources.Worker]:
        """List every worker in the index, newest first."""
        return await self._transport.collect(resources.Worker, "/v1/workers")


class Queue(Resource):
    """Inspect, pause and resume the queue."""

    async def get(self) -> resources.Queue:
        """Return the waiting and running work."""
        return await self._transport.call(resources.Queue, "GET", "/v1/queue")

    async def pause(self, reason: str | None = None) -> resources.Queue:
        """Pause the queue: workers start nothing new until `resume`. Jobs are still accepted."""
        return await self._transport.call(resources.Queue, "POST", "/v1/queue/pause", json={"reason": reason})

    async def resume(self) -> resources.Queue:
        """Resume the queue. `paused` in the answer is true if the service paused it for its own reasons."""
        return await self._transport.call(resources.Queue, "POST", "/v1/queue/resume")
