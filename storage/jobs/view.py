"""The resource of a job, from its row alone."""

from typing import Any

from actograph.contract import base, resources
from actograph.contract.models import PinnedModel
from actograph.contract.resources import JobStatus
from storage.tables.models import JobRow


def of_row(row: JobRow, **live: Any) -> resources.Job:
    """The resource of a job. `live` are the fields of a queued or running job, see `job_view`."""
    pinned = PinnedModel.model_validate(row.pinned) if row.pinned else None
    return resources.Job(
        id=row.id,
        kind=row.kind,
        status=JobStatus(row.status),
        model=row.model,
        created_at=int(row.created_at),
        started_at=_seconds(row.started_at),
        finished_at=_seconds(row.finished_at),
        progress=progress(row),
        error=base.ErrorRecord.model_validate(row.error) if row.error else None,
        priority=row.priority,
        owner=row.owner or None,
        deadline_at=_seconds(row.deadline_at),
        identity_sha256=row.identity_sha256,
        model_identity=pinned.identity if pinned else None,
        savepoints=pinned.savepoints if pinned else {},
        tags=row.spec.get("tags", []),
        metadata=row.spec.get("metadata", {}),
        spec=row.spec,
        results_url=f"/v1/jobs/{row.id}/results",
        **live,
    )


def progress(row: JobRow) -> resources.Progress:
    return resources.Progress(total=row.total or 0, completed=row.completed, failed=row.failed)


def _seconds(value: float | None) -> int | None:
    return int(value) if value is not None else None
