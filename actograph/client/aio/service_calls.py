"""The calls about the service itself: models, workers, the queue."""

from typing import Any

from actograph.client.aio.calls import Calls
from actograph.client.answers import path_of, read
from actograph.client.errors import ApiError
from actograph.contract import resources
from actograph.contract.service.capabilities import Capabilities


class ServiceCalls(Calls):
    """Models, workers and the queue."""

    async def models(self) -> list[resources.Model]:
        """The models that are served."""
        return await self._list("/v1/models", resources.Model)

    async def capabilities(self) -> Capabilities:
        """What the service can do: job kinds, points, tasks, limits, and how it was set up."""
        return read(Capabilities, await self._transport.request("GET", "/v1/capabilities"))

    async def load_model(self, model: str, **options: Any) -> resources.ModelLoad:
        """Have a worker load a served model in place of its own; `model_load` tells how far it is.

        Args:
            options: `revision`, `dtype`, `device_map`, `max_memory`, `attn_implementation`,
                `savepoints`; see docs/models.md.
        """
        body = {"model_id": model} | options
        return read(resources.ModelLoad, await self._transport.request("POST", "/v1/models/load", json=body))

    async def model_load(self, load_id: str) -> resources.ModelLoad:
        """What became of a request to load a model."""
        path = path_of("/v1/models/load", load_id)
        return read(resources.ModelLoad, await self._transport.request("GET", path))

    async def structure(self, model: str | None = None) -> resources.ModelStructure:
        """Layers, widths and hook points of a model that a worker has loaded."""
        answer = await self._transport.request("GET", "/v1/model/structure", params={"model": model})
        return read(resources.ModelStructure, answer)

    async def workers(self) -> list[resources.Worker]:
        """Every worker that the index knows, the newest first."""
        return await self._list("/v1/workers", resources.Worker)

    async def queue(self) -> resources.Queue:
        """What waits and what runs."""
        return read(resources.Queue, await self._transport.request("GET", "/v1/queue"))

    async def pause_queue(self, reason: str | None = None) -> resources.Queue:
        """Have workers begin nothing new, until `resume_queue`; jobs are still accepted."""
        answer = await self._transport.request("POST", "/v1/queue/pause", json={"reason": reason})
        return read(resources.Queue, answer)

    async def resume_queue(self) -> resources.Queue:
        """End the pause that was asked for; `paused` of the answer tells whether another one holds."""
        return read(resources.Queue, await self._transport.request("POST", "/v1/queue/resume"))

    async def ready(self) -> bool:
        """Whether requests will be served: database, broker and a worker with its model are there."""
        try:
            answer = await self._transport.request("GET", "/readyz", repeatable=False, timeout=10.0)
        except ApiError as error:
            if error.status == 503:
                return False
            raise
        return "[-]" not in answer.text  # a worker that is missing is said in a 200
