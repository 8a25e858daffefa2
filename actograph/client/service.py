"""`client.files`, `models`, `batches`, `vectors`, `saes`, `queue`, `workers`, `keys` and `store`."""

import builtins
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from actograph.client.keywords import require_known
from actograph.client.transport import LONG_SECONDS, APIResource, Listing, parse, path_of
from actograph.contract import base, models, operations, resources
from actograph.contract.errors import InvalidRequest
from actograph.contract.interventions import StoredVector, VectorInfo
from actograph.contract.model_loads import ModelLoadRequest
from actograph.contract.openai_answers import Batch, BatchRequest
from actograph.contract.operations import ApiKey, CreatedKey, File, KeyUpdate, NewKey
from actograph.contract.saes import NewSae, Sae
from actograph.progress import ReadMeter, meter

MB = 1_000_000
#: smaller files show no bar
SHOWN_BYTES = 8 * MB

P = TypeVar("P", operations.StoreGc, operations.StoreVerification)


class Files(APIResource, path="/v1/files"):
    """Upload, read and delete files."""

    def upload(self, path: str | Path, purpose: str = "dataset", *, progress: bool = False) -> File:
        """Upload a file from disk as a stream. `purpose`: `dataset` or `batch`.

        `progress` shows a bar with rate and ETA on stderr for files over 8 MB.
        """
        path = Path(path)
        size = path.stat().st_size
        with path.open("rb") as stream, meter("MB", show=progress and size >= SHOWN_BYTES) as update:
            update("sending", 0, size // MB)
            metered = ReadMeter(stream, lambda sent: update("sending", sent // MB, size // MB))
            answer = self._transport.request(
                "POST",
                "/v1/files",
                data={"purpose": purpose},
                files={"file": (path.name, metered, "application/octet-stream")},
                repeatable=False,
            )
        return parse(File, answer.content)

    def list(self, purpose: str | None = None) -> Listing[File]:
        """List uploaded files, newest first."""
        return self._items(File, purpose=purpose)

    def get(self, file_id: str) -> File:
        """Return a file's name, size and purpose."""
        return self._call(File, "GET", file_id)

    def content(self, file_id: str) -> bytes:
        """Return the bytes of a file."""
        return self._transport.request("GET", path_of("/v1/files", file_id, "content")).content

    def delete(self, file_id: str) -> base.Deleted:
        """Delete an uploaded file that no active job reads."""
        return self._call(base.Deleted, "DELETE", file_id)


class Models(APIResource, path="/v1/models"):
    """List, load and inspect models."""

    def list(self) -> builtins.list[models.Model]:
        """List the served models."""
        return [*self._items(models.Model)]

    def only(self) -> str:
        """Return the name of the only served model. Raises InvalidRequest if there is none, or several."""
        served = [model.id for model in self.list()]
        if len(served) != 1:
            raise InvalidRequest(f"name a model; served: {', '.join(served) or 'none'}", param="model")
        return served[0]

    def load(self, model: str, **options: Any) -> resources.ModelLoad:
        """Ask a worker to load a served model; poll it with `get_load`.

        Options: `revision`, `dtype`, `device_map`, `max_memory`, `attn_implementation`, `savepoints`; see
        docs/guides/models.md.
        """
        require_known(self.load, options, ModelLoadRequest, fixed=["model_id"])
        return self._call(resources.ModelLoad, "POST", "load", json={"model_id": model} | options)

    def get_load(self, load_id: str) -> resources.ModelLoad:
        """Return the state of a model load."""
        return self._call(resources.ModelLoad, "GET", "load", load_id)

    def structure(self, model: str | None = None) -> models.ModelStructure:
        """Return layers, widths and hook points of a loaded model."""
        params = {"model": model}
        return self._transport.call(models.ModelStructure, "GET", "/v1/model/structure", params=params)


class Batches(APIResource, path="/v1/batches"):
    """Create, list and cancel batches: files of chat and completion requests; see docs/guides/openai.md."""

    def create(self, input_file_id: str, endpoint: str, **options: Any) -> Batch:
        """Create a batch from an uploaded file. A repeated request creates one batch only.

        Args:
            input_file_id: a file with the purpose `batch`.
            endpoint: `/v1/chat/completions` or `/v1/completions`.
            options: `completion_window`, `metadata`, `priority`, `tags`.
        """
        require_known(self.create, options, BatchRequest)
        body = {"input_file_id": input_file_id, "endpoint": endpoint} | options
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        return self._call(Batch, "POST", json=body, headers=headers)

    def get(self, batch_id: str) -> Batch:
        """Return one batch with its current counts."""
        return self._call(Batch, "GET", batch_id)

    def list(self) -> Listing[Batch]:
        """List batches, newest first."""
        return self._items(Batch)

    def cancel(self, batch_id: str) -> Batch:
        """Cancel a batch. Finished requests are kept."""
        return self._call(Batch, "POST", batch_id, "cancel")


class Vectors(APIResource, path="/v1/vectors"):
    """Store, list and delete vectors for interventions."""

    def create(
        self,
        name: str,
        hook: str,
        vector: Iterable[float],
        *,
        model: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> VectorInfo:
        """Store a vector. Interventions refer to it by its id.

        Args:
            vector: a list or 1-D array as wide as the hook.
            model: restrict the vector to jobs of this model.
        """
        numbers = [float(number) for number in vector]
        body = {"name": name, "hook": hook, "vector": numbers, "model": model, "metadata": metadata or {}}
        return self._call(VectorInfo, "POST", json=body)

    def list(
        self, *, name: str | None = None, hook: str | None = None, model: str | None = None
    ) -> Listing[VectorInfo]:
        """List stored vectors without their numbers, newest first."""
        return self._items(VectorInfo, name=name, hook=hook, model=model)

    def get(self, vector: str) -> StoredVector:
        """Return one stored vector with its numbers, by id, the beginning of one, name, or `NAME@HOOK`."""
        return self._call(StoredVector, "GET", vector)

    def delete(self, vector: str) -> base.Deleted:
        """Delete a vector that no active job uses; `vector` is that of `get`."""
        return self._call(base.Deleted, "DELETE", vector)


class Saes(APIResource, path="/v1/saes"):
    """Store, list and delete SAEs, with which captures encode; see docs/guides/saes.md."""

    def create(self, name: str, **options: Any) -> Sae:
        """Store an SAE in SAELens' format: `cfg.json` and `sae_weights.safetensors` of one folder.

        Args:
            name: its latents are stored as `sae:NAME`.
            options: `path`, a folder of the server, or `hub` with `folder` and `revision`; `hook`, if it is
                not the one that the files name; `model`, `metadata`.
        """
        require_known(self.create, options, NewSae, fixed=["name"])
        given = {field: value for field, value in options.items() if value is not None}
        return self._call(Sae, "POST", json={"name": name} | given, timeout=LONG_SECONDS)

    def list(
        self, *, name: str | None = None, hook: str | None = None, model: str | None = None
    ) -> Listing[Sae]:
        """List stored SAEs, newest first."""
        return self._items(Sae, name=name, hook=hook, model=model)

    def get(self, sae: str) -> Sae:
        """Return one stored SAE, by id, the beginning of one, or name."""
        return self._call(Sae, "GET", sae)

    def delete(self, sae: str) -> base.Deleted:
        """Delete an SAE that no active job uses; `sae` is that of `get`. Stored latents stay."""
        return self._call(base.Deleted, "DELETE", sae)


class Workers(APIResource, path="/v1/workers"):
    """List workers."""

    def list(self) -> builtins.list[operations.Worker]:
        """List every worker in the index, newest first."""
        return [*self._items(operations.Worker)]


class Queue(APIResource, path="/v1/queue"):
    """Inspect, pause and resume the queue."""

    def get(self) -> operations.QueueState:
        """Return the waiting and running work."""
        return self._call(operations.QueueState, "GET")

    def pause(self, reason: str | None = None) -> operations.QueueState:
        """Pause the queue: workers start nothing new until `resume`. Jobs are still accepted."""
        return self._call(operations.QueueState, "POST", "pause", json={"reason": reason})

    def resume(self) -> operations.QueueState:
        """Resume the queue. `paused` in the answer is true if the service paused it for its own reasons."""
        return self._call(operations.QueueState, "POST", "resume")


class Keys(APIResource, path="/v1/keys"):
    """Create, list, update and revoke API keys, as an admin."""

    def create(self, new: NewKey) -> CreatedKey:
        """Create a key. Only this answer contains it: if it is lost, revoke the key and create another."""
        body = new.model_dump(mode="json", exclude_unset=True)
        return self._call(CreatedKey, "POST", json=body, repeatable=False)

    def list(self) -> Listing[ApiKey]:
        """List keys, newest first, with revoked and expired keys."""
        return self._items(ApiKey)

    def update(self, key_id: str, change: KeyUpdate) -> ApiKey:
        """Change a key's name or limits."""
        body = change.model_dump(mode="json", exclude_unset=True)
        return self._call(ApiKey, "PATCH", key_id, json=body)

    def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key for good."""
        return self._call(ApiKey, "DELETE", key_id)


class Store(APIResource, path="/v1/store"):
    """Measure, clean and verify the artifact store."""

    def usage(self) -> operations.StoreUsage:
        """Return stored bytes per owner, and the quotas."""
        return self._transport.call(operations.StoreUsage, "GET", "/v1/activations/stats")

    def collect_garbage(self, *, dry_run: bool = False) -> Iterator[operations.StoreGc]:
        """Delete unused files, one page per iteration, or report them only; see docs/operate/storage.md."""
        return self._pages(operations.StoreGc, "gc", dry_run=dry_run)

    def verify(self, *, sample: float = 1.0, seed: int = 0) -> Iterator[operations.StoreVerification]:
        """Compare the store with the index, one page per iteration.

        `sample` is the share of sessions and files whose bytes are read; `seed` selects it.
        """
        return self._pages(operations.StoreVerification, "verify", sample=sample, seed=seed)

    def _pages(self, form: type[P], act: str, **params: Any) -> Iterator[P]:
        params["after"] = None
        while True:
            page = self._call(form, "POST", act, params=params, timeout=LONG_SECONDS)
            yield page
            params["after"] = page.next
            if page.next is None:
                return
