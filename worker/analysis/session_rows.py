"""One row per session and hook: the mean of the session's chosen rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from actograph.contract.base import canonical_digest
from actograph.contract.errors import InvalidRequest
from actograph.contract.interventions import NewVector
from storage.jobs import jobs
from storage.sessions import vectors
from storage.sessions.reader import SessionReader
from storage.tables.models import SampleRow, SessionRow
from worker.analysis.context import Context
from worker.analysis.state import State

#: mean row of each hook
Means = dict[str, NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class AboutSession:
    """A session's sample."""

    job_id: str
    sample_id: str
    sample_index: int
    condition: str
    epoch: int
    correct: bool | None
    #: metric key -> {value, answer}
    scores: dict[str, Any]
    completion: str
    generated_tokens: int
    input: dict[str, Any]
    #: digest of the input: duplicates of a problem have the same
    problem: str
    text: str


@dataclass(frozen=True, kw_only=True)
class SessionRows:
    """Rows of all hooks in the order of `about`: hook -> [sessions, width]."""

    features: dict[str, NDArray[np.float32]]
    about: list[AboutSession]
    #: sessions without a chosen row of every hook
    skipped: int


def gather(context: Context, also: Sequence[str] = ()) -> SessionRows:
    """Read every session once, and resume from the stored state.

    Args:
        also: further hooks to read, which all jobs captured.

    Raises:
        InvalidRequest: the jobs have no hook in common, or the rows do not fit into the worker's memory.
    """
    names = [name for name in context.jobs[0].hooks if all(name in job.hooks for job in context.jobs)]
    if not names:
        raise InvalidRequest("the jobs have no hook in common", param="hooks")
    names += [name for name in also if name not in names]
    state = context.resume() or {}
    rows: dict[str, list[NDArray[np.float32]]] = {name: list(state.get(name, ())) for name in names}
    kept = [str(one) for one in state.get("kept", ())]

    def stored() -> State:
        arrays = {name: np.array(found, np.float32) for name, found in rows.items()}
        return {**arrays, "kept": np.array(kept, dtype=np.str_)}

    total = sum(len(job.session_ids) for job in context.jobs)
    for job in context.jobs:
        for reader in context.sessions(job):
            found = _means(context, reader, names)
            if found is not None:
                _check_memory(context, total * sum(4 * len(row) for row in found.values()))
                for name, row in found.items():
                    rows[name].append(row)
                kept.append(reader.session_id)
            context.finish(reader.session_id, stored)
    features = {}
    for name in names:
        of_hook = rows.pop(name)
        if len({len(row) for row in of_hook}) > 1:
            raise InvalidRequest(f"the jobs' rows of {name} differ in width", param="jobs")
        features[name] = np.array(of_hook, np.float32)
    return SessionRows(features=features, about=_about(context, kept), skipped=len(context.done) - len(kept))


def store_vectors(context: Context, name: str, found: dict[str, NDArray[Any]]) -> dict[str, str]:
    """Store a vector for each hook. Returns hook -> id."""
    ids = {}
    with context.database.write() as session:
        owner = jobs.get(session, context.job_id).owner
        for hook, vector in found.items():
            new = NewVector(
                name=name,
                hook=hook,
                vector=vector.tolist(),
                model=context.jobs[0].model,
                metadata={"job_id": context.job_id},
            )
            ids[hook] = vectors.insert(session, new, owner=owner).id
    return ids


def _means(context: Context, reader: SessionReader, names: list[str]) -> Means | None:
    found = {}
    for name in names:
        total, count = np.zeros(reader.tensor_info(name).shape[1]), 0
        for tokens, block in context.rows(reader, [name]):
            total += block[name].astype(np.float64).sum(axis=0)
            count += len(tokens)
        if not count:
            return None
        found[name] = (total / count).astype(np.float32)
    return found


def _check_memory(context: Context, needed: int) -> None:
    if needed > context.memory_bytes:
        raise InvalidRequest(
            f"the rows of all hooks take {needed:,} bytes; ACTOGRAPH_ANALYSIS_MEMORY_BYTES is "
            f"{context.memory_bytes:,}: name fewer layers or sessions",
            param="layers",
        )


def _about(context: Context, session_ids: list[str]) -> list[AboutSession]:
    found: dict[str, AboutSession] = {}
    with context.database.read() as session:
        for start in range(0, len(session_ids), 500):
            chosen = session_ids[start : start + 500]
            statement = (
                sa.select(SessionRow, SampleRow)
                .join(SampleRow, SampleRow.id == SessionRow.sample_id)
                .where(SessionRow.id.in_(chosen))
            )
            for row, sample in session.execute(statement):
                found[row.id] = AboutSession(
                    job_id=row.job_id,
                    sample_id=sample.id,
                    sample_index=sample.sample_index,
                    condition=row.condition,
                    epoch=sample.epoch,
                    scores=sample.scores or {},
                    completion=sample.completion or "",
                    correct=row.correct,
                    generated_tokens=row.generated_tokens,
                    input=sample.input,
                    problem=canonical_digest(sample.input),
                    text=sample.prompt or "",
                )
    missing = [one for one in session_ids if one not in found]
    if missing:
        raise InvalidRequest(f"session {missing[0]} was deleted while it was analysed", param="jobs")
    return [found[one] for one in session_ids]
