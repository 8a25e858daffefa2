# Made of ../aio/vector_calls.py by `python actograph/client/unasync.py`: change that file, not this one.
"""The calls about vectors that interventions name."""

from collections.abc import Iterable, Iterator, Mapping

from actograph.client.answers import path_of, read
from actograph.client.blocking.calls import Calls
from actograph.contract import resources
from actograph.contract.interventions import StoredVector, VectorInfo


class VectorCalls(Calls):
    """Vectors for interventions."""

    def store_vector(
        self,
        name: str,
        hook: str,
        vector: Iterable[float],
        *,
        model: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> VectorInfo:
        """Store a vector under an id that interventions may name.

        Args:
            vector: as many numbers as the hook is wide: a list, or a 1-D array.
            model: given, only jobs of this model may use the vector.
        """
        numbers = [float(number) for number in vector]
        body = {
            "name": name,
            "hook": hook,
            "vector": numbers,
            "model": model,
            "metadata": dict(metadata or {}),
        }
        return read(VectorInfo, self._transport.request("POST", "/v1/interventions", json=body))

    def vectors(self, *, name: str | None = None, model: str | None = None) -> Iterator[VectorInfo]:
        """Stored vectors without their numbers, newest first."""
        return self._items("/v1/interventions", VectorInfo, {"name": name, "model": model})

    def vector(self, vector_id: str) -> StoredVector:
        """One stored vector with its numbers."""
        return read(StoredVector, self._transport.request("GET", path_of("/v1/interventions", vector_id)))

    def delete_vector(self, vector_id: str) -> resources.Deleted:
        """Remove a vector that no active job refers to."""
        return read(
            resources.Deleted,
            self._transport.request("DELETE", path_of("/v1/interventions", vector_id)),
        )
