"""Insert the samples of a new job."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.resources import SampleStatus
from storage.index.ids import new_sample_id
from storage.tables.models import SampleRow

_INSERT = sa.insert(cast(sa.Table, SampleRow.__table__))


@dataclass(frozen=True, kw_only=True)
class NewSample:
    sample_index: int
    #: name of the condition; "" if the job has none
    condition: str
    epoch: int
    input: dict[str, Any]
    seed: int
    #: place in running order; None for the order of insertion
    position: int | None = None


def insert(session: Session, job_id: str, samples: Iterable[NewSample], *, first: int = 0) -> None:
    """Insert samples of a job in running order from the place `first`, or at their own places."""
    rows = [
        {
            "id": new_sample_id(),
            "job_id": job_id,
            "position": place if sample.position is None else sample.position,
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
