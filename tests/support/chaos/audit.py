"""Audit of `bench.chaos`: every sample of a disturbed job beside the undisturbed one."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import sqlalchemy as sa

from actograph import tensor_files
from actograph.contract.errors import ActographError, WorkerLost
from actograph.contract.resources import Job, JobStatus, Sample, SampleStatus
from storage.artifacts.store import ArtifactStore
from storage.index.database import Database
from storage.sessions.reader import SessionReader
from storage.tables.models import SampleRow, SessionRow

#: activations of another batch: fp32, see docs/reference/architectures.md
ABSOLUTE_TOLERANCE = 1e-4
#: the same of a hook's largest value, where float32 rounds more coarsely
RELATIVE_TOLERANCE = 1e-5


@dataclass
class Audit:
    """Counts; every one of `FAULTLESS` must be zero."""

    samples: int = 0
    sessions: int = 0
    unfinished_jobs: int = 0
    lost: int = 0
    duplicated: int = 0
    unreadable: int = 0
    different_texts: int = 0
    different_scores: int = 0
    different_token_ids: int = 0
    different_activations: int = 0
    #: sessions of a job with another identity, dtype or place of their hooks than most of it
    mixed_identity: int = 0
    #: rows of deleted jobs, and deletions that were never carried out
    undeleted: int = 0
    #: samples that were claimed more than once, and how often in all
    repeated_samples: int = 0
    repeats: int = 0
    #: samples that failed, as they must, when the faults had killed their worker four times
    given_up: int = 0
    largest_activation_difference: float = 0.0
    examples: list[str] = field(default_factory=list)

    FAULTLESS = (
        "unfinished_jobs", "lost", "duplicated", "unreadable", "different_texts", "different_scores",
        "different_token_ids", "different_activations", "mixed_identity", "undeleted",
    )  # fmt: skip

    def is_clean(self) -> bool:
        return all(getattr(self, name) == 0 for name in self.FAULTLESS)

    def note(self, kind: str, example: str, count: int = 1) -> None:
        if count:
            setattr(self, kind, getattr(self, kind) + count)
            self.examples.append(f"{kind}: {example}")


Key = tuple[int, str | None, int]


def _key(sample: Sample) -> Key:
    return sample.sample_index, sample.condition, sample.epoch


def audit_job(
    audit: Audit,
    *,
    job: Job,
    samples: Sequence[Sample],
    expected: Sequence[Sample],
    database: Database,
    store: ArtifactStore,
) -> None:
    """Compare a disturbed job with the undisturbed one of the same spec; read every session whole."""
    if job.status is not JobStatus.COMPLETED:
        audit.note("unfinished_jobs", f"{job.id} is {job.status}")
    counts = Counter(_key(s) for s in samples)
    reference = {_key(s): s for s in expected}
    good = {_key(s): s for s in samples if s.status is SampleStatus.COMPLETED}
    given_up = {_key(s) for s in samples if s.error is not None and s.error.type == WorkerLost.code}
    audit.given_up += len(given_up)
    lost = reference.keys() - good.keys() - given_up
    audit.note("lost", f"{job.id}: {len(lost)} samples", len(lost))
    audit.note("duplicated", f"{job.id}: rows", sum(n - 1 for n in counts.values()))
    # a result that was counted twice, or not at all, shows here
    audit.note(
        "duplicated", f"{job.id} counts {job.progress.completed}", abs(job.progress.completed - len(good))
    )
    with database.read() as session:
        of_sample = Counter(
            session.scalars(sa.select(SessionRow.sample_id).where(SessionRow.job_id == job.id))
        )
        losses = session.scalars(sa.select(SampleRow.losses).where(SampleRow.job_id == job.id)).all()
    audit.note("duplicated", f"{job.id}: sessions", sum(n - 1 for n in of_sample.values()))
    audit.repeated_samples += sum(n > 0 for n in losses)
    audit.repeats += sum(losses)
    audit.samples += len(samples)
    identities: Counter[str] = Counter()
    for key, sample in good.items():
        other = reference[key]
        if (sample.completion, sample.prompt, sample.finish_reason) != (
            other.completion, other.prompt, other.finish_reason,
        ):  # fmt: skip
            audit.note("different_texts", sample.id)
        if sample.scores != other.scores:
            audit.note("different_scores", sample.id)
        if sample.session_id is None or of_sample[sample.id] == 0 or other.session_id is None:
            audit.note("lost", f"{sample.id} has no session")
            continue
        audit.sessions += 1
        _compare_sessions(audit, store, sample.session_id, other.session_id)
        identities[_identity(store, sample.session_id)] += 1
    usual, of_usual = next(iter(identities.most_common(1)), ("", 0))
    found = f"{job.id}: {usual} and " + ", ".join(identities.keys() - {usual})
    audit.note("mixed_identity", found, identities.total() - of_usual)


def _identity(store: ArtifactStore, session_id: str) -> str:
    """Identity of the model that a session was recorded with, from its manifest."""
    try:
        said = SessionReader(store, session_id).manifest.model_dump(mode="json")
    except ActographError:
        return "unreadable"
    hooks = {name: tensor["dtype"] for name, tensor in said["tensors"].items()}
    named = [said.get(name) for name in ("identity_sha256", "revision", "resolved_hooks")]
    return json.dumps([*named, hooks], sort_keys=True)


def _compare_sessions(audit: Audit, store: ArtifactStore, session_id: str, reference_id: str) -> None:
    reader, reference = SessionReader(store, session_id), SessionReader(store, reference_id)
    try:
        reader.verify()
        if reader.token_ids() != reference.token_ids():
            audit.note("different_token_ids", session_id)
            return
        if reader.manifest.tensors.keys() != reference.manifest.tensors.keys():
            audit.note("different_activations", f"{session_id}: other hooks")
            return
        dtypes = [{n: t.dtype for n, t in r.manifest.tensors.items()} for r in (reader, reference)]
        if dtypes[0] != dtypes[1]:
            audit.note("different_activations", f"{session_id}: other dtypes")
            return
        found = [_difference(reader, reference, hook) for hook in reader.manifest.tensors]
    except ActographError as error:
        audit.note("unreadable", str(error))
        return
    worst = max(difference for difference, _ in found)
    audit.largest_activation_difference = max(audit.largest_activation_difference, worst)
    if not all(difference <= allowed for difference, allowed in found):
        audit.note("different_activations", f"{session_id}: {worst}")


def _difference(reader: SessionReader, reference: SessionReader, hook: str) -> tuple[float, float]:
    """The largest difference of a hook's values, and what rounding may make."""
    values, wanted = _rows(reader, hook), _rows(reference, hook)
    allowed = max(ABSOLUTE_TOLERANCE, RELATIVE_TOLERANCE * float(np.abs(wanted).max()))
    return float(np.abs(values - wanted).max()), allowed


def _rows(reader: SessionReader, hook: str) -> Any:
    shape = reader.manifest.tensors[hook].shape
    part = reader.rows(hook, 0, shape[0])
    return tensor_files.raw_array(part.dtype, part.shape, part.data)
