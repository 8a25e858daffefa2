"""The stored results of a patch job's pairs, read together."""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.analysis import patching
from actograph.analysis.patching import Array
from actograph.concurrency import each_of
from actograph.contract.errors import Conflict, InvalidRequest, StoreDamaged
from actograph.contract.patching import (
    ARRAYS_FILE,
    PAIR_FILE,
    PatchedPair,
    PatchingResult,
    SkippedPair,
)
from actograph.contract.readouts import stored_name
from actograph.contract.resources import SampleStatus
from storage.analyses.pairs import CLEAN, CORRUPTED
from storage.artifacts.store import ArtifactStore
from storage.sessions import sessions
from storage.sessions.manifest import MANIFEST_NAME
from storage.sessions.reader import SessionReader
from storage.tables.models import JobRow, SampleRow, SessionRow

#: pairs that are read at once, and skipped ones that a result lists
_READERS, LISTED = 8, 100


@dataclass(frozen=True, kw_only=True)
class StoredPairs:
    """The results that a job has stored so far, by the index.

    Attributes:
        readers: of the sessions of its pairs, in the order of the samples.
    """

    job_id: str
    status: str
    metric: str
    direction: str
    readers: list[SessionReader]
    skipped: list[SkippedPair]
    skipped_pairs: int


def of_job(session: Session, store: ArtifactStore, job: JobRow) -> StoredPairs:
    """The pairs of a job.

    Raises:
        InvalidRequest: it is no patch job.
        Conflict: no pair has ended.
    """
    if job.kind != "patch":
        raise InvalidRequest(f"job {job.id} is of kind {job.kind}; only patch jobs have effects of cells")
    found = sa.select(SessionRow).join(SampleRow, SampleRow.id == SessionRow.sample_id)
    rows = session.scalars(
        found.where(SessionRow.job_id == job.id).order_by(SampleRow.position, SampleRow.id)
    ).all()
    failed = sa.select(SampleRow).where(SampleRow.job_id == job.id, SampleRow.status == SampleStatus.FAILED)
    count = session.scalar(sa.select(sa.func.count()).select_from(failed.subquery())) or 0
    listed = session.scalars(failed.order_by(SampleRow.position, SampleRow.id).limit(LISTED)).all()
    if not rows:
        why = f": {(listed[0].error or {}).get('message', '')}" if listed else ""
        raise Conflict(f"job {job.id} is {job.status}, and no pair has a result{why}")
    return StoredPairs(
        job_id=job.id,
        status=job.status,
        metric=_metric(job.spec["metric"]),
        direction=job.spec["direction"],
        readers=[
            SessionReader(store, row.id, recorded=sessions.files_of(row)[MANIFEST_NAME]) for row in rows
        ],
        skipped=[
            SkippedPair(
                clean_session=one.input[CLEAN],
                corrupted_session=one.input[CORRUPTED],
                reason=(one.error or {}).get("message", ""),
            )
            for one in listed
        ],
        skipped_pairs=count,
    )


def _metric(given: str | dict[str, Any]) -> str:
    return given if isinstance(given, str) else stored_name(given["readout"]["name"])


def read(stored: StoredPairs) -> tuple[PatchingResult, dict[str, Array]]:
    """The effects of all pairs, and their arrays by name, see `patching.stacked`.

    Raises:
        StoreDamaged: a file is missing or damaged.
    """
    found = list(each_of(_read, stored.readers, _READERS))
    pairs = [pair for pair, _ in found]
    arrays = patching.stacked(pairs, [metric for _, metric in found])
    first = pairs[0]
    result = PatchingResult.model_validate(
        {
            "job_id": stored.job_id,
            "status": stored.status,
            "metric": stored.metric,
            "direction": stored.direction,
            "pairs": pairs,
            "skipped": stored.skipped,
            "skipped_pairs": stored.skipped_pairs,
            "points": first.points,
            "layers": first.layers,
            "positions": patching.positions_of(pairs),
            "heads": first.heads,
            "cells": patching.cells(pairs, arrays),
        }
    )
    return result, arrays


def _read(reader: SessionReader) -> tuple[PatchedPair, Array]:
    pair = PatchedPair.model_validate_json(_whole(reader, PAIR_FILE))
    try:
        with np.load(io.BytesIO(_whole(reader, ARRAYS_FILE)), allow_pickle=False) as arrays:
            return pair, arrays["metric"]
    except (ValueError, KeyError) as error:
        raise StoreDamaged(
            f"session {reader.session_id}: {ARRAYS_FILE} cannot be read: {error}", artifact=reader.session_id
        ) from error


def _whole(reader: SessionReader, name: str) -> bytes:
    file = reader.file(name)
    return file.read(0, file.size)
