"""`client.models`, `client.workers` and `client.queue`."""

import builtins
from typing import Any

from actograph.client.answers import path_of
from actograph.client.transport import Resource
from actograph.contract import resources


class Models(Resource):
    """List, load and inspect models."""

    def list(self) -> builtins.list[resources.Model]:
        """List the served models."""
        return self._transport.collect(resources.Model, "/v1/models")

    def load(self, model: str, **options: Any) -> resources.ModelLoad:
        """Ask a worker to load a served model; poll it with `get_load`.

        Args:
            options: `revision`, `dtype`, `device_map`, `max_memory`, `attn_implementation`,
                `savepoints`; see docs/guides/models.md.
        """
        body = {"model_id": model} | options
        return self._transport.call(resources.ModelLoad, "POST", "/v1/models/load", json=body)

    def get_load(self, load_id: str) -> resources.ModelLoad:
        """Return the state of a model load."""
        return self._transport.call(resources.ModelLoad, "GET", path_of("/v1/models/load", load_id))

    def structure(self, model: str | None = None) -> resources.ModelStructure:
        """Return layers, widths and hook points of a loaded model."""
        return self._transport.call(
            resources.ModelStructure, "GET", "/v1/model/structure", params={"model": model}
        )


class Workers(Resource):
    """List workers."""

    def list(self) -> builtins.list[resources.Worker]:
        """List every worker in the index, newest first."""
        return self._transport.collect(resources.Worker, "/v1/workers")


class Queue(Resource):
    """Inspect, pause and resume the queue."""

    def get(self) -> resources.Queue:
        """Return the waiting and running work."""
        return self._transport.call(resources.Queue, "GET", "/v1/queue")

    def pause(self, reason: str | None = None) -> resources.Queue:
        """Pause the queue: workers start nothing new until `resume`. Jobs are still accepted."""
        return self._transport.call(resources.Queue, "POST", "/v1/queue/pause", json={"reason": reason})

    def resume(self) -> resources.Queue:
        """Resume the queue. `paused` in the answer is true if the service paused it for its own reasons."""
        return self._transport.call(resources.Queue, "POST", "/v1/queue/resume")
