"""Sessions of a store that has no service: listed from their manifests."""

from collections.abc import Callable
from typing import Any

from actograph.client.artifact_stores import ArtifactFiles
from actograph.client.queries import Order, SessionQuery, query_params
from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import Session

#: filters that a manifest can answer
_TESTS: dict[str, Callable[[Session, Any], bool]] = {
    "job_id": lambda session, value: session.job_id == value,
    "id_prefix": lambda session, value: session.id.startswith(value),
    "model": lambda session, value: session.model == value,
    "condition": lambda session, value: session.condition == value,
    "sample_index": lambda session, value: session.sample_index == value,
    "created_after": lambda session, value: session.created_at > value,
    "created_before": lambda session, value: session.created_at < value,
}


def listed(store: ArtifactFiles, filters: SessionQuery, order: Order) -> list[Session]:
    """Return matching sessions by age. Reads every manifest of the store.

    Raises:
        InvalidRequest: a filter needs the service's index.
        StoreDamaged: a manifest cannot be read.
    """
    wanted = query_params(filters)
    unknown = wanted.keys() - _TESTS.keys()
    if unknown:
        raise InvalidRequest(
            f"filter {min(unknown)} needs the service; a store alone knows {', '.join(_TESTS)}",
            param=min(unknown),
        )
    found = [store.manifest(identifier).session() for identifier in store.session_ids()]
    fitting = [one for one in found if all(_TESTS[name](one, value) for name, value in wanted.items())]
    return sorted(fitting, key=lambda one: (one.created_at, one.id), reverse=order == "desc")
