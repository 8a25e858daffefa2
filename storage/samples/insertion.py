"""Insert the samples of a new job."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.resources import SampleStatus
from storage.index.ids import new_sample_id
from storage.tables.models import SampleRow

INSERT_BATCH = 1000
#: about the most characters of prompts and answers in one transaction of a large job
INSERT_CHARACTERS = 4 << 20
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


def characters_of(sample: NewSample) -> int:
    """Characters of the sample's input."""
    return sum(len(value) for value in sample.input.values() if isinstance(value, str))


def insert(session: Session, job_id: str, samples: Iterable[NewSample], *, first: int = 0) -> int:
    """Insert samples of a job in running order from the place `first`, or at their own places.

    Returns their number.
    """
    count = characters = 0
    batch: list[dict[str, Any]] = []
    connection = session.connection()

    def flush() -> None:
        if batch:
            connection.execute(_INSERT, batch)
            batch.clear()

    for place, sample in enumerate(samples, start=first):
        batch.append(
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
        )
        count += 1
        characters += characters_of(sample)
        if len(batch) >= INSERT_BATCH or characters >= INSERT_CHARACTERS:
            flush()
            characters = 0
    flush()
    return count


def next_position(session: Session, job_id: str) -> int:
    """The place after the last sample of a job."""
    last = session.scalar(sa.select(sa.func.max(SampleRow.position)).where(SampleRow.job_id == job_id))
    return 0 if last is None else last + 1
