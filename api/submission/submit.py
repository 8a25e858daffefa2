"""Check a spec of any kind, and insert the checked job into the index."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy.orm import Session

from actograph.contract.chat.chat_job import ChatJobSpec
from actograph.contract.resources import ModelStructure
from api.dependencies import Services
from api.submission import datasets
from api.submission.check import check_spec
from api.submission.expand import expand_spec
from api.submission.resolve import Spec, resolve_spec, stored_vectors, within_context
from storage.accounts import quotas
from storage.accounts.quotas import Quotas
from storage.index.database import Database
from storage.jobs import jobs
from storage.jobs.request_keys import RequestKey, first_wins
from storage.queue import pins, routing
from storage.samples import NewSample
from storage.submission import admission, bulk_insert
from storage.tables.models import JobRow

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """State of the service for a job of one model and priority."""

    #: None if no worker has loaded the model yet
    structure: ModelStructure | None
    #: last reported memory of the live worker with most free memory; empty if none holds the model
    memory: dict[str, int]
    quotas: Quotas
    #: position of the job
    place: int
    #: None if a worker can serve the job
    waiting_reason: str | None


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job that passed every check and can be inserted."""

    spec: Spec
    outlook: Outlook
    #: canonical names of captured hooks; None if the worker must resolve them
    hooks: list[str] | None
    samples: Callable[[], Iterator[NewSample]]
    #: number of samples; None if only the worker can read the dataset
    total: int | None
    #: see `storage.accounts.quotas`
    owner: str | None

    @property
    def structure(self) -> ModelStructure | None:
        """None if no worker has loaded the model yet."""
        return self.outlook.structure


def check(services: Services, spec: Spec, owner: str | None) -> Submission:
    """Resolve, check and expand a spec.

    Raises:
        UnknownModel, UnknownHook, ContextLengthExceeded, InvalidDataset, InvalidRequest
    """
    spec = resolve_spec(services, spec)
    with services.database.read() as session:
        outlook = read_outlook(services, session, spec)
        stored = stored_vectors(session, spec)
    if isinstance(spec, ChatJobSpec) and all(given.max_tokens is None for given in spec.inputs):
        spec = within_context(spec, outlook.structure, spec.sampling.max_tokens)
    names = check_spec(spec, outlook.structure, stored)
    samples, total = expand_spec(services, spec)
    return Submission(spec=spec, outlook=outlook, hooks=names, samples=samples, total=total, owner=owner)


def read_outlook(services: Services, session: Session, spec: Spec) -> Outlook:
    """Read the state of the service for a job."""
    found = admission.read(session, spec.model, spec.priority)
    served = [spec.model] if found.is_held else routing.served_models(session)
    return Outlook(
        structure=services.structures.of(session, spec.model, found.loaded_at),
        memory=max(found.memory, key=lambda memory: memory.get("device_available_bytes", 0), default={}),
        quotas=quotas.read(session, services.settings),
        place=found.place,
        waiting_reason=routing.why_unserved(spec.model, served),
    )


def insert(
    database: Database,
    submission: Submission,
    finish: Callable[[Session, JobRow], T],
    request_key: RequestKey | None = None,
) -> T:
    """Insert the job and its samples, and return the result of `finish`. The caller wakes the workers.

    A large job takes several transactions. `finish` runs in the last one, which makes the job visible.

    Raises:
        IdempotencyInFlight: another request with this key was faster.
        InvalidDataset: an uploaded file was deleted since the check.
        InvalidRequest: a stored vector was deleted since the check.
    """

    def publish(session: Session, row: JobRow) -> T:
        _keep_named(session, submission.spec)
        return finish(session, row)

    def create(session: Session) -> JobRow:
        with first_wins():
            return _create(session, submission, request_key)

    return bulk_insert.insert_job(database, submission.samples(), create=create, publish=publish)


def _keep_named(session: Session, spec: Spec) -> None:
    """Prevent the deletion of the job's files and vectors. Raises InvalidDataset or InvalidRequest."""
    for file_id, field in sorted(datasets.uploads(spec)):
        datasets.require_upload(session, file_id, field, keep=True)
    stored_vectors(session, spec, keep=True)


def _create(session: Session, submission: Submission, request_key: RequestKey | None) -> JobRow:
    spec = submission.spec
    _keep_named(session, spec)
    return jobs.create(
        session,
        kind=spec.kind,
        model=spec.model,
        spec=spec,
        hooks=submission.hooks,
        total=submission.total,
        owner=submission.owner,
        pinned=pins.of_structure(submission.structure),
        request_key=request_key,
    )
