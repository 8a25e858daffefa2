"""The way of an analysis job: resolve its jobs, check its hooks, insert it. It needs no model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.orm import Session

from actograph.contract.errors import InvalidRequest, NotFound
from actograph.contract.resources import Estimate
from actograph.contract.specs import ANALYSIS_QUEUE, AnalysisSpec, AnyAnalysisSpec, FileDataset, ProbeSpec
from actograph.contract.specs.analysis.source import selected_hooks
from api import named_hooks
from api.dependencies import Services
from api.submission import datasets, webhook_targets
from api.submission.submit import Outlook
from storage.accounts import quotas
from storage.files import sample_labels
from storage.files.dataset_sources import Uploads
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import routing
from storage.samples import NewSample
from storage.sessions import analysed
from storage.submission import admission, bulk_insert
from storage.tables.models import JobRow

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class AnalysisSubmission:
    """An analysis job that passed every check."""

    spec: AnyAnalysisSpec
    outlook: Outlook
    owner: str | None
    #: hooks that it reads, of all its jobs
    hooks: list[str]
    sessions: int
    bytes: int


def check(services: Services, spec: AnyAnalysisSpec, owner: str | None) -> AnalysisSubmission:
    """Set the defaults of a spec and check its jobs, sessions and hooks.

    Raises:
        InvalidRequest: a job does not exist, or has no matching session or hook.
        InvalidDataset: the file of labels cannot be used.
    """
    changes: dict[str, object] = {"webhook": webhook_targets.check(services.settings, spec.webhook)}
    if spec.max_consecutive_failures is None:
        changes["max_consecutive_failures"] = services.settings.max_consecutive_failures
    spec = spec.model_copy(update=changes)
    if isinstance(spec, ProbeSpec) and spec.labels is not None:
        spec = _with_labels(services, spec)
    names: dict[str, None] = {}
    count = size = 0
    with services.database.read() as session:
        for param, job_id in spec.read_jobs:
            row = _job(session, job_id, param)
            found = analysed.count(session, spec, job_id)
            if not found.sessions:
                raise InvalidRequest(f"job {job_id} has no matching session", param=param)
            if job_id == spec.jobs[0]:  # the names of the first job hold for all
                named = [named_hooks.of_job(services, session, row, name) for name in spec.hooks]
                spec = spec.model_copy(update={"hooks": named})
            names |= dict.fromkeys(selected_hooks(spec, row.hooks or []))
            count, size = count + found.sessions, size + found.bytes
        outlook = _outlook(services, session, spec)
    return AnalysisSubmission(
        spec=spec, outlook=outlook, owner=owner, hooks=list(names), sessions=count, bytes=size
    )


def _with_labels(services: Services, spec: ProbeSpec) -> ProbeSpec:
    """Resolve the format of the file of labels, and read it once. Raises InvalidDataset."""
    assert spec.labels is not None
    located = datasets.locate(services, spec.labels, "labels")
    assert isinstance(located, FileDataset)
    with datasets.named("labels"):
        sample_labels.read(located, spec.label, Uploads(services.database, services.store))
    return spec.model_copy(update={"labels": located})


def estimate(submission: AnalysisSubmission) -> Estimate:
    """The sessions that an analysis reads; it stores only its results."""
    return Estimate(
        model=ANALYSIS_QUEUE,
        samples=1,
        hooks=submission.hooks,
        generated_tokens=0,
        assumptions=[
            f"it reads {submission.sessions} sessions, which have {submission.bytes:,} bytes with all hooks"
        ],
    )


def insert(database: Database, submission: AnalysisSubmission, finish: Callable[[Session, JobRow], T]) -> T:
    """Insert the job with one sample, which an analysis worker claims. Returns the result of `finish`.

    Raises:
        InvalidRequest: one of its jobs was deleted since the check.
        InvalidDataset: the file of labels was deleted since then.
    """
    spec = submission.spec

    def create(session: Session) -> JobRow:
        for param, job_id in spec.read_jobs:
            _job(session, job_id, param)
        for file_id, field in datasets.uploads(spec):
            datasets.require_upload(session, file_id, field, keep=True)
        return jobs.create(
            session,
            kind=spec.kind,
            model=spec.model,
            spec=spec,
            hooks=submission.hooks,
            total=1,
            owner=submission.owner,
        )

    only = NewSample(sample_index=0, condition="", epoch=0, input={}, seed=0)
    return bulk_insert.insert_job(database, [only], create=create, publish=finish)


def _job(session: Session, job_id: str, param: str) -> JobRow:
    try:
        return jobs.get(session, job_id)
    except NotFound:
        raise InvalidRequest(f"there is no job {job_id}", param=param) from None


def _outlook(services: Services, session: Session, spec: AnalysisSpec) -> Outlook:
    found = admission.read(session, spec.model, spec.priority)
    served = [spec.model] if found.is_held else routing.served_models(session)
    return Outlook(
        structure=None,
        memory={},
        quotas=quotas.read(session, services.settings),
        place=found.place,
        waiting_reason=routing.why_unserved(spec.model, served),
    )
