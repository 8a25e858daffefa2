"""The way of a spec from the request to inserted samples: resolve, check, expand, admit, insert.

*Resolve* locates the datasets, reads the task file and sets the defaults. *Check* compares the spec with the
structure of its model; without a structure, since no worker has loaded the model yet, the worker makes these
checks. *Expand* reads the dataset and makes samples. `estimate.admit` checks memory, disk and quotas, and
`storage.submission.bulk_insert` stores the job.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from sqlalchemy.orm import Session

from actograph.contract.chat_job import ChatJobSpec
from actograph.contract.errors import InvalidDataset, InvalidRequest, ServiceUnavailable
from actograph.contract.job_specs import CaptureJobSpec, EvaluationSpec, validated
from actograph.contract.models import ModelStructure
from actograph.contract.specs import (
    BUILT_IN_TOOLS,
    ExpiresAfter,
    FileDataset,
    HubDataset,
    JobSpecBase,
    PathDataset,
)
from actograph.contract.task_files import MAX_FILE_BYTES, read_task_file, task_from
from actograph.contract.tasks import TaskFile, TaskPath, TaskSpec
from actograph.settings import functions_of
from api import estimate
from api.check import check_hooks, check_length, check_prompts
from api.dependencies import Services
from api.estimate import Submission
from evals.dataset_readers import format_of
from evals.dataset_rows import DatasetRow, RowForm, Texts
from evals.scoring.scorers import ScorerSet
from evals.task_rows import Task, row_form
from storage.accounts import quotas
from storage.files import dataset_sources
from storage.files.dataset_sources import Uploads
from storage.jobs import jobs
from storage.jobs.jobs import Spec
from storage.jobs.request_keys import RequestKey
from storage.queue import pause, workers
from storage.samples import NewSample
from storage.samples.expansion import capture_samples, chat_samples, evaluation_samples
from storage.submission import bulk_insert, named
from storage.tables.models import JobRow

S = TypeVar("S", bound=Spec)
G = TypeVar("G", bound=JobSpecBase)

#: a larger job would make one transaction too long
MAX_SAMPLES = 200_000
#: larger offsets select nothing in any file, and are not counted to
FARTHEST_ROW = 1 << 40
#: makes the samples of a job, each time anew, and their number; None if only the worker can read the dataset
_Samples = tuple[Callable[[], Iterator[NewSample]], int | None]


def submit(
    services: Services, spec: Spec, owner: str, *, key: RequestKey | None = None, starts_now: bool = False
) -> JobRow:
    """Check a spec, insert its job and wake a worker.

    Args:
        starts_now: refuse a job that would wait for an unknown time.

    Raises:
        UnknownModel, UnknownHook, ContextLengthExceeded, InvalidDataset, InvalidRequest
        InsufficientResources, IdempotencyInFlight
        ServiceUnavailable: no live worker can serve the model, or the queue is paused.
    """
    submission = check(services, spec, owner)
    estimate.admit(services, submission)
    if starts_now:
        _require_start(services, submission)
    return insert(services, submission, key=key)


def check(services: Services, spec: Spec, owner: str) -> Submission:
    """Resolve, check and expand a spec. Raises the errors of `submit` except those for lack of resources."""
    spec = _resolve(services, spec)
    with services.database.read() as session:
        submission = outlook(services, session, spec, owner)
        stored = named.stored_vectors(session, spec)
    structure = submission.structure
    if isinstance(spec, ChatJobSpec) and all(given.max_tokens is None for given in spec.inputs):
        spec = within_context(spec, structure, spec.sampling.max_tokens)
    names = check_hooks(spec, structure, stored)
    check_length(spec, structure)
    check_prompts(spec, structure)
    samples, total = _expand(services, spec)
    return replace(submission, spec=spec, hooks=names, samples=samples, total=total)


# resolve


def _resolve(services: Services, spec: Spec) -> Spec:
    changes: dict[str, Any] = {}
    for field in named.DATASETS:
        dataset = getattr(spec, field, None)
        if isinstance(dataset, PathDataset):
            with _naming(field):
                path = str(dataset_sources.allowed_path(dataset.path, services.settings.data_roots))
            # a link that changes later does not affect the job
            changes[field] = PathDataset(path=path, format=dataset.format or format_of(dataset.path))
        elif isinstance(dataset, FileDataset):
            with services.database.read() as session:
                form = dataset.format or format_of(named.upload(session, dataset.file_id, field).filename)
            changes[field] = dataset.model_copy(update={"format": form})
    spec = spec.model_copy(update=changes)
    if isinstance(spec, EvaluationSpec):
        spec = _with_task(services, spec)
    return with_defaults(services, spec)


def with_defaults(services: Services, spec: S) -> S:
    """The spec with its canonical model and the defaults of the service. Raises UnknownModel."""
    settings = services.settings
    changes: dict[str, Any] = {"model": services.models.require(spec.model)}
    if spec.expires_after is None and settings.expire_after_seconds:
        changes["expires_after"] = ExpiresAfter(seconds=settings.expire_after_seconds)
    if spec.sample_timeout_seconds is None:
        changes["sample_timeout_seconds"] = settings.sample_timeout_seconds
    if spec.max_consecutive_failures is None:
        changes["max_consecutive_failures"] = settings.max_consecutive_failures
    return cast(S, spec.model_copy(update=changes))


def within_context(spec: G, structure: ModelStructure | None, most: int) -> G:
    """The spec with `max_tokens` set to `most`, or to the limit of the model's context if that is less."""
    if structure is not None:
        most = min(most, structure.context_length - 1)
    sampling = spec.sampling.model_copy(update={"max_tokens": max(1, most)})
    return spec.model_copy(update={"sampling": sampling})


def outlook(services: Services, session: Session, spec: Spec, owner: str) -> Submission:
    """A submission without samples: the state of the service for a job."""
    holders = workers.holders(session, spec.model)
    served = {spec.model: None} if holders else workers.served_models(session)
    memory = [row.memory for row in holders if row.status in workers.LIVE and row.memory]
    return Submission(
        spec=spec,
        owner=owner,
        structure=services.structures.find(session, spec.model),
        memory=max(memory, key=lambda one: one.get("run_bytes", 0), default={}),
        quotas=quotas.read(session, services.settings),
        waiting_reason=workers.why_unserved(spec.model, served),
    )


def _with_task(services: Services, spec: EvaluationSpec) -> EvaluationSpec:
    """Replace a task file by its content, and check templates and examples."""
    if isinstance(spec.task, TaskFile | TaskPath):
        fields = read_task_file(_task_file(services, spec.task))
        fields.pop("dataset", None)  # only for the command line
        task = task_from(fields)
        # defaults of the spec, such as the number of examples, depend on the task
        given = {name: getattr(spec, name) for name in spec.model_fields_set}
        spec = validated(EvaluationSpec, given | {"task": task.model_dump()})
    if isinstance(spec.task, TaskSpec):
        Task(spec.task)
    return spec


def _task_file(services: Services, task: TaskFile | TaskPath) -> bytes:
    """Read a task file, at most a little more than it may have. Raises InvalidDataset."""
    with _naming("task"):
        if isinstance(task, TaskFile):
            return Uploads(services.database, services.store).open(task.file_id).read(MAX_FILE_BYTES + 1)
        with dataset_sources.allowed_path(task.path, services.settings.data_roots).open("rb") as stream:
            return stream.read(MAX_FILE_BYTES + 1)


@contextmanager
def _naming(field: str) -> Iterator[None]:
    """Make errors about `dataset` name `field`, which may be the few-shot dataset or the task."""
    try:
        yield
    except InvalidDataset as error:
        param = (error.param or "dataset").replace("dataset", field, 1)
        raise InvalidDataset(error.message, param=param) from error.__cause__
    except OSError as error:
        raise InvalidDataset(f"the file cannot be read: {error.strerror}", param=field) from error


# expand


def _expand(services: Services, spec: Spec) -> _Samples:
    """One sample for each row or input, condition and epoch.

    Raises:
        InvalidDataset: a row is not valid, or there are too few rows for the examples.
        InvalidRequest: there are too many samples.
    """
    per_row = max(1, len(spec.conditions)) * spec.epochs
    rows: list[DatasetRow] = []
    if isinstance(spec, EvaluationSpec):
        rows = _chosen(services, spec, row_form(spec.task), per_row)
        scorers = ScorerSet.of(spec, services.scorers)
        _check_tools(services, spec)
        for row in rows:
            try:
                scorers.check_target(row.answer)
            except InvalidDataset as error:
                raise InvalidDataset(f"row {row.index}: {error.message}", param="dataset") from None
        _check_fewshot(services, spec)
        samples, count = partial(evaluation_samples, spec, rows), len(rows)
    elif isinstance(spec, CaptureJobSpec):
        rows = _chosen(services, spec, Texts(spec.text_field), per_row)
        samples, count = partial(capture_samples, spec, rows), len(spec.inputs or rows)
    else:
        assert isinstance(spec, ChatJobSpec)
        samples, count = partial(chat_samples, spec), len(spec.inputs)
    if count * per_row > MAX_SAMPLES:
        raise InvalidRequest(
            f"the job has {count * per_row} samples or more, one job may have {MAX_SAMPLES}; split it with "
            "offset and limit"
        )
    is_hub = isinstance(getattr(spec, "dataset", None), HubDataset)
    return samples, None if is_hub else count * per_row


def _check_tools(services: Services, spec: EvaluationSpec) -> None:
    """Raises InvalidRequest for a tool that the service does not have."""
    known = [*BUILT_IN_TOOLS, *functions_of(services.settings.user_tools)]
    for name in (name for condition in spec.conditions for name in spec.tools_of(condition)):
        if name not in known:
            raise InvalidRequest(
                f"there is no tool {name!r}; the tools are {', '.join(known)}", param="tools"
            )


def _chosen(
    services: Services, spec: EvaluationSpec | CaptureJobSpec, form: RowForm, per_row: int
) -> list[DatasetRow]:
    """Read the rows of the dataset; none if only the worker can read it."""
    if spec.dataset is None or isinstance(spec.dataset, HubDataset):
        return []
    # one row above the limit is enough to refuse the job
    most = MAX_SAMPLES // per_row + 1
    limit = most if spec.limit is None else min(spec.limit, most)
    return list(_rows(services, spec.dataset, form, limit=limit, offset=spec.offset))


def _check_fewshot(services: Services, spec: EvaluationSpec) -> None:
    """Raises InvalidDataset if there are fewer rows than examples. The worker draws the examples."""
    source, field = spec.fewshot_dataset, "fewshot_dataset"
    if source is None:
        source, field = spec.dataset, "dataset"
    if not spec.num_fewshot or spec.own_examples or isinstance(source, HubDataset):
        return
    # a tested problem is never its own example
    needed = spec.num_fewshot + (source == spec.dataset)
    found = sum(1 for _ in _rows(services, source, row_form(spec.task), field=field))
    if found < needed:
        raise InvalidDataset(
            f"num_fewshot {spec.num_fewshot} needs {needed} rows to choose from; there are {found}",
            param="num_fewshot",
        )


def _rows(
    services: Services,
    dataset: FileDataset | PathDataset,
    form: RowForm,
    *,
    field: str = "dataset",
    limit: int | None = None,
    offset: int = 0,
) -> Iterator[DatasetRow]:
    uploads, roots = Uploads(services.database, services.store), services.settings.data_roots
    with _naming(field):
        yield from dataset_sources.read(
            dataset, uploads, roots, form, limit=limit, offset=min(offset, FARTHEST_ROW)
        )


# insert


def _require_start(services: Services, submission: Submission) -> None:
    """Raises ServiceUnavailable if no worker can serve the job, or it is paused."""
    if submission.waiting_reason is not None:
        raise ServiceUnavailable(submission.waiting_reason)
    with services.database.read() as session:
        held = pause.active(session, services.store, services.settings)
    reason = pause.in_words(held) or submission.quotas.owner_pause(submission.owner)
    if reason is not None:
        raise ServiceUnavailable(f"no job starts now: {reason}")


def insert(
    services: Services, submission: Submission, *, key: RequestKey | None = None, batch_id: str | None = None
) -> JobRow:
    """Insert the job and its samples, and wake a worker. Raises the errors of `bulk_insert.insert_job`."""
    row = bulk_insert.insert_job(
        services.database,
        submission.spec,
        submission.samples(),
        batch_id=batch_id,
        hooks=submission.hooks,
        total=submission.total,
        owner=submission.owner,
        pinned=jobs.pin_to(submission.structure, submission.spec.engine),
        request_key=key,
    )
    # without the broker an idle worker finds the job
    services.broker.wake(row.model)
    return row
