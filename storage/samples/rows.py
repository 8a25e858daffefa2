"""Insert samples of a job, and read them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Unpack, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract import base, resources
from actograph.contract.resources import SampleStatus, ToolMessage, ToolUse
from storage.index import pages, row_locks
from storage.index.ids import new_sample_id
from storage.index.pages import PageOptions
from storage.tables.models import SampleRow

_INSERT = sa.insert(cast(sa.Table, SampleRow.__table__))


@dataclass(frozen=True, kw_only=True)
class NewSample:
    """A sample to insert."""

    sample_index: int
    #: name of the condition; "" if the job has none
    condition: str
    epoch: int
    input: dict[str, Any]
    seed: int


def insert(session: Session, job_id: str, samples: Iterable[NewSample], *, first: int = 0) -> None:
    """Insert samples of a job in running order from the place `first`."""
    rows = [
        {
            "id": new_sample_id(),
            "job_id": job_id,
            "position": place,
            "sample_index": sample.sample_index,
            "condition": sample.condition,
            "epoch": sample.epoch,
            "status": SampleStatus.PENDING,
            "input": sample.input,
            "seed": sample.seed,
        }
        for place, sample in enumerate(samples, start=first)
    ]
    if rows:
        session.connection().execute(_INSERT, rows)


def next_position(session: Session, job_id: str) -> int:
    """The place after the last sample of a job."""
    last = session.scalar(sa.select(sa.func.max(SampleRow.position)).where(SampleRow.job_id == job_id))
    return 0 if last is None else last + 1


def get(session: Session, sample_id: str) -> SampleRow:
    """Raises NotFound."""
    return row_locks.one([session.get(SampleRow, sample_id)], f"sample {sample_id}")


def find(
    session: Session,
    job_id: str,
    *,
    status: SampleStatus | None = None,
    condition: str | None = None,
    **page: Unpack[PageOptions],
) -> tuple[Sequence[SampleRow], bool]:
    """One page of a job's samples, in running order by default."""
    statement = sa.select(SampleRow).where(SampleRow.job_id == job_id)
    if status is not None:
        statement = statement.where(SampleRow.status == status)
    if condition is not None:
        statement = statement.where(SampleRow.condition == condition)
    page.setdefault("order", "asc")
    return pages.fetch(session, statement, SampleRow.position, SampleRow.id, **page)


def resource(row: SampleRow) -> resources.Sample:
    """The sample as the API shows it."""
    return resources.Sample(
        id=row.id,
        job_id=row.job_id,
        sample_index=row.sample_index,
        condition=row.condition or None,
        epoch=row.epoch,
        status=SampleStatus(row.status),
        input=row.input,
        prompt=row.prompt,
        completion=row.completion,
        finish_reason=row.finish_reason,
        prompt_tokens=row.prompt_tokens,
        generated_tokens=row.generated_tokens,
        seed=row.seed,
        scores={k: resources.Score.model_validate(v) for k, v in (row.scores or {}).items()},
        readouts=row.readouts or {},
        tool_use=ToolUse.model_validate(row.tool_use) if row.tool_use else None,
        messages=[ToolMessage.model_validate(message) for message in row.messages or ()],
        error=base.ErrorRecord.model_validate(row.error) if row.error else None,
        session_id=row.session_id,
        losses=row.losses,
        started_at=int(row.started_at) if row.started_at is not None else None,
        finished_at=int(row.finished_at) if row.finished_at is not None else None,
    )
