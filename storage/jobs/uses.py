"""Stored vectors and SAEs that active jobs name."""

from collections.abc import Iterator, Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from storage.index.visible import of_everyone
from storage.jobs import jobs
from storage.tables.models import JobRow


@of_everyone
def user_of(session: Session, named: str) -> str | None:
    """An active job that uses a vector or an SAE, if any.

    Args:
        named: its id.
    """
    statement = sa.select(JobRow.id, JobRow.spec).where(JobRow.status.in_(jobs.ACTIVE))
    return next((str(job_id) for job_id, spec in session.execute(statement) if named in _ids_in(spec)), None)


def _ids_in(spec: Mapping[str, Any]) -> Iterator[str]:
    """The vectors and SAEs that a stored spec names."""
    for owner in (spec, *(spec.get("conditions") or ())):
        for intervention in owner.get("interventions") or ():
            yield from (intervention[name] for name in ("vector_id", "sae") if intervention.get(name))
    capture = spec.get("capture") or {}
    yield from (one["vector"] for one in capture.get("readouts") or ())
    yield from (one["sae"] for one in capture.get("saes") or ())
    if isinstance(metric := spec.get("metric"), Mapping):
        yield metric["readout"]["vector"]
    yield from spec.get("uses") or ()
