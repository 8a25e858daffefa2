"""A submitted body on its way to the index: its spec, and what the service knows when it arrives."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar, cast

from actograph.contract.errors import InvalidRequest
from actograph.contract.interventions import StoredVector, each
from actograph.contract.job_specs import AnyJobSpec
from actograph.contract.models import ModelStructure, PinnedModel
from actograph.contract.saes import Sae
from actograph.contract.specs import ExpiresAfter, HubDataset, JobSpecBase, ModelJobSpec, QueuedSpec
from api.dependencies import Services
from storage.accounts import quotas
from storage.accounts.quotas import Quotas
from storage.analyses.queries import Survey
from storage.queue import workers
from storage.samples import NewSample
from storage.sessions import source_rows
from storage.submission import named, references

S = TypeVar("S", bound=QueuedSpec)
M = TypeVar("M", bound=ModelJobSpec)
C = TypeVar("C", bound=JobSpecBase)

#: a larger job would make one transaction too long
MAX_SAMPLES = 200_000


class TokenCounts(NamedTuple):
    """Tokens that the samples of a replay or of a patch job read.

    Attributes:
        prompt, generated: means over samples; all that a pair reads is its prompt.
        longest: most tokens of one text.
        cells: mean over the pairs of a patch job.
    """

    prompt: int
    generated: int
    longest: int
    cells: int | None = None


@dataclass(frozen=True, kw_only=True)
class Submission(Generic[S]):
    """A job that becomes ready to insert, step by step, and the state of the service for it."""

    spec: S
    #: see `storage.accounts.quotas`
    owner: str
    quotas: Quotas
    #: None if no worker has loaded the model yet, or the job needs none
    structure: ModelStructure | None = None
    #: last reported memory of the live worker with most free memory; empty if none holds the model
    memory: Mapping[str, int] = field(default_factory=dict)
    #: None if a worker can serve the job
    waiting_reason: str | None = None
    #: stored vectors, by the field that names them
    vectors: Mapping[str, StoredVector] = field(default_factory=dict)
    #: stored SAEs, by the entry of the capture or the intervention that names them
    saes: Mapping[str, Sae] = field(default_factory=dict)
    #: widths of the rows of sessions that interventions take, by the field that names them
    source_widths: Mapping[str, int] = field(default_factory=dict)
    #: what an analysis reads
    surveys: tuple[Survey, ...] = ()
    #: of the sessions that a replay or a patch job reads
    counts: TokenCounts | None = None
    #: the model that they were recorded with, if the model of this name is another one now
    pinned: PinnedModel | None = None
    #: canonical names of captured hooks; None if the worker must resolve them
    hooks: list[str] | None = None
    samples: Callable[[], Iterable[NewSample]] = tuple
    #: number of samples; None if only the worker can read the dataset
    total: int | None = None

    def with_samples(self, samples: Callable[[], Iterable[NewSample]], inputs: int) -> "Submission[S]":
        """Add the samples of so many inputs or rows. Raises InvalidRequest if they are too many."""
        count = inputs * samples_of_each(self.spec)
        if count > MAX_SAMPLES:
            raise InvalidRequest(
                f"the job has {count} samples or more, one job may have {MAX_SAMPLES}; split it with "
                "offset and limit"
            )
        is_known = not isinstance(getattr(self.spec, "dataset", None), HubDataset)
        return replace(self, samples=samples, total=count if is_known else None)


def samples_of_each(spec: QueuedSpec) -> int:
    """Samples of each input or row: one for each condition and epoch."""
    return max(1, len(getattr(spec, "conditions", ()))) * getattr(spec, "epochs", 1)


def with_expiry(services: Services, spec: S) -> S:
    """The spec with the service's expiry of sessions, if it has none."""
    seconds = services.settings.expire_after_seconds
    if spec.expires_after is not None or not seconds:
        return spec
    return spec.model_copy(update={"expires_after": ExpiresAfter(seconds=seconds)})


def with_defaults(services: Services, spec: M) -> M:
    """The spec with its canonical model, full ids and the defaults of the service.

    Raises:
        UnknownModel
        InvalidRequest: an intervention names no vector, or several.
    """
    changes: dict[str, Any] = {"model": services.models.require(spec.model)}
    for name in ("sample_timeout_seconds", "max_consecutive_failures"):
        if getattr(spec, name) is None:
            changes[name] = getattr(services.settings, name)
    return with_vectors(services, with_expiry(services, spec.model_copy(update=changes)))


def with_vectors(services: Services, spec: M) -> M:
    """The spec with the full ids of stored vectors and SAEs. Raises InvalidRequest."""
    if not references.has_short_ones(spec):
        return spec
    with services.database.read() as session:
        return references.with_full_ids(session, spec)


def outlook(services: Services, spec: M, owner: str) -> Submission[M]:
    """The submission of a job that runs a model: the state of the service for it.

    Raises:
        InvalidRequest: there is no such vector, or no such row of a session.
    """
    edits = list(each(getattr(spec, "interventions", ()), getattr(spec, "conditions", ())))
    with services.database.read() as session:
        source_rows.require_sessions(session, edits)
        holders = workers.holders(session, spec.model)
        served = {spec.model: None} if holders else workers.served_models(session)
        memory = [row.memory for row in holders if row.status in workers.LIVE and row.memory]
        submission = Submission(
            spec=spec,
            owner=owner,
            structure=services.structures.find(session, spec.model),
            memory=max(memory, key=lambda one: one.get("run_bytes", 0), default={}),
            quotas=quotas.read(session, services.settings),
            waiting_reason=workers.why_unserved(spec.model, served),
            vectors=named.stored_vectors(session, cast(AnyJobSpec, spec)),
            saes=named.stored_saes(session, cast(AnyJobSpec, spec)),
        )
    rows = source_rows.read(services.store, edits)
    return replace(submission, source_widths={param: len(row) for param, row in rows.items()})


def within_context(submission: Submission[C], most: int) -> Submission[C]:
    """The submission with `max_tokens` set to `most`, or to the limit of the model's context if less."""
    spec, structure = submission.spec, submission.structure
    if structure is not None:
        most = min(most, structure.context_length - 1)
    sampling = spec.sampling.model_copy(update={"max_tokens": max(1, most)})
    return replace(submission, spec=spec.model_copy(update={"sampling": sampling}))
