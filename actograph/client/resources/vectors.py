"""`client.vectors`: stored vectors for interventions."""

from collections.abc import Iterable, Iterator, Mapping

from actograph.client.answers import path_of
from actograph.client.transport import Resource
from actograph.contract import resources
from actograph.contract.interventions import StoredVector, VectorInfo


class Vectors(Resource):
    """Store, list and delete vectors."""

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
        body = {
            "name": name,
            "hook": hook,
            "vector": [float(number) for number in vector],
            "model": model,
            "metadata": dict(metadata or {}),
        }
        return self._transport.call(VectorInfo, "POST", "/v1/interventions", json=body)

    def list(self, *, name: str | None = None, model: str | None = None) -> Iterator[VectorInfo]:
        """List stored vectors without their numbers, newest first."""
        return self._transport.items(VectorInfo, "/v1/interventions", {"name": name, "model": model})

    def get(self, vector_id: str) -> StoredVector:
        """Return one stored vector with its numbers."""
        return self._transport.call(StoredVector, "GET", path_of("/v1/interventions", vector_id))

    def delete(self, vector_id: str) -> resources.Deleted:
        """Delete a vector that no active job uses."""
        path = path_of("/v1/interventions", vector_id)
        return self._transport.call(resources.Deleted, "DELETE", path)
