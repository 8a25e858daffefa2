"""Submitting a job: every check that can be made before a worker sees it, then one transaction.

What is refused here costs the client a second; what is refused by the worker costs a place in
the queue. The job is visible only together with its samples.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from sqlalchemy.orm import Session

from actograph.contract import hooks
from actograph.contract.chat.chat_job import ChatInput, ChatJobSpec
from actograph.contract.errors import (
    ContextLengthExceeded,
    InvalidDataset,
    InvalidRequest,
    NotFound,
    UnknownHook,
)
from actograph.contract.resources import ModelStructure
from actograph.contract.specs import (
    AnyJobSpec,
    CaptureInput,
    CaptureJobSpec,
    CaptureSpec,
    EvaluationSpec,
    ExpiresAfter,
    ExtractSpec,
    FileDataset,
    GeneratingSpec,
    HubDataset,
    PathDataset,
)
from actograph.contract.structure_checks import check_capture, check_sampling
from actograph.datasets.dataset_formats import format_of
from actograph.datasets.dataset_rows import DatasetRow, TextRow
from actograph.scoring.of_job import JobScoring
from actograph.tasks.rows import row_form
from api.dependencies import Services
from api.submission import interventions, outlook, task_files, webhook_targets
from api.submission.outlook import Outlook
from storage.files import dataset_sources, files
from storage.files.dataset_sources import Uploads
from storage.samples import NewSample
from storage.samples.expansion import capture_samples, chat_samples, evaluation_samples, extract_samples
from storage.submission import row_spool
from storage.submission.row_spool import RowSpool
from storage.tables.models import FileRow

#: more samples than this make one transaction too long; split the job with offset and limit
MAX_SAMPLES = 200_000

#: an offset beyond it selects nothing in any file; larger numbers than the machine's are not counted to
FARTHEST_ROW = 1 << 40

Spec = AnyJobSpec | ChatJobSpec
S = TypeVar("S", bound=Spec)


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job that passed every check and can be inserted."""

    spec: Spec
    outlook: Outlook
    hooks: list[str] | None
    samples: Callable[[], Iterator[NewSample]]
    #: how many they are; None where only the worker can read the dataset
    total: int | None
    #: (field of the spec, file id)
    uploads: tuple[tuple[str, str], ...]
    #: who submits it, see `storage.accounts.quotas`
    owner: str | None = None

    @property
    def structure(self) -> ModelStructure | None:
        """None where no worker has loaded the model yet."""
        return self.outlook.structure


def check(services: Services, spec: Spec) -> Submission:
    """Check a spec against what is served here.

    Raises:
        UnknownModel, UnknownHook, ContextLengthExceeded, InvalidDataset, InvalidRequest
    """
    spec = with_defaults(services, spec)
    with services.database.read() as session:
        ahead = outlook.read(services, session, spec.model, spec.priority)
        structure = ahead.structure
        hook_names = captured_hooks(spec.capture, structure)
        interventions.check(session, spec, structure)
    if structure is not None:
        _check_context(spec, structure)
    check_biased(spec, structure)
    check_template(spec, structure)
    if isinstance(spec, CaptureJobSpec):
        capture_spec = spec
        total = _check_count(len(spec.inputs) * max(1, len(spec.conditions)) * spec.epochs)
        return Submission(
            spec=spec,
            outlook=ahead,
            hooks=hook_names,
            samples=lambda: capture_samples(capture_spec),
            total=total,
            uploads=(),
        )
    if isinstance(spec, ChatJobSpec):
        chat_spec = spec
        return Submission(
            spec=spec,
            outlook=ahead,
            hooks=hook_names,
            samples=lambda: chat_samples(chat_spec),
            total=_check_count(len(spec.inputs) * spec.epochs),
            uploads=(),
        )
    if isinstance(spec, ExtractSpec):
        return _extract(services, spec, ahead, hook_names)
    spec, rows = _read_datasets(services, spec)
    evaluation = spec
    refs = (("dataset", spec.dataset), ("fewshot_dataset", spec.fewshot_dataset))
    uploads = tuple((field, ref.file_id) for field, ref in refs if isinstance(ref, FileDataset))
    return Submission(
        spec=spec,
        outlook=ahead,
        hooks=hook_names,
        samples=lambda: evaluation_samples(evaluation, rows or ()),
        total=None if rows is None else len(rows) * len(spec.conditions) * spec.epochs,
        uploads=uploads,
    )


def with_defaults(services: Services, spec: S) -> S:
    """The spec with its model as it is served, and what the service decides where the client does not.

    Raises:
        UnknownModel, InvalidRequest
    """
    changes: dict[str, Any] = {
        "model": services.models.require(spec.model),
        "webhook": webhook_targets.check(services.settings, spec.webhook),
    }
    if isinstance(spec, CaptureJobSpec) and spec.capture is None:
        changes["capture"] = CaptureSpec()
    if spec.expires_after is None and services.settings.expire_after_seconds:
        changes["expires_after"] = ExpiresAfter(seconds=services.settings.expire_after_seconds)
    if not isinstance(spec, ExtractSpec) and spec.sample_timeout_seconds is None:
        changes["sample_timeout_seconds"] = services.settings.sample_timeout_seconds
    if spec.max_consecutive_failures is None:
        changes["max_consecutive_failures"] = services.settings.max_consecutive_failures
    return cast(S, spec.model_copy(update=changes))


def _extract(
    services: Services, spec: ExtractSpec, ahead: Outlook, hook_names: list[str] | None
) -> Submission:
    per_row = max(1, len(spec.conditions))
    rows: RowSpool[TextRow] | tuple[()] = ()
    total: int | None = len(spec.inputs or ()) * per_row
    uploads: tuple[tuple[str, str], ...] = ()
    if spec.dataset is not None:
        dataset = _locate(services, spec.dataset, "dataset")
        spec = spec.model_copy(update={"dataset": dataset})
        total = None
        if isinstance(dataset, FileDataset):
            uploads = (("dataset", dataset.file_id),)
        if not isinstance(dataset, HubDataset):
            rows = row_spool.texts(_texts(services, dataset, spec, _most_rows(spec.limit, per_row)))
            total = len(rows) * per_row
    if total is not None:
        _check_count(total)
    return Submission(
        spec=spec,
        outlook=ahead,
        hooks=hook_names,
        samples=lambda: extract_samples(spec, rows),
        total=total,
        uploads=uploads,
    )


def captured_hooks(capture: CaptureSpec | None, structure: ModelStructure | None) -> list[str] | None:
    """Canonical names, [] where nothing is captured, None where the worker must resolve them."""
    if capture is None or capture.mode == "off":
        return []
    if structure is None:
        return None
    try:
        names = hooks.expand(capture.points, capture.layers, capture.hooks, structure)
    except UnknownHook as error:
        raise UnknownHook(error.message, param=f"capture.{error.param or 'hooks'}") from None
    check_capture(capture, names, structure)
    return names


def _check_context(spec: Spec, structure: ModelStructure) -> None:
    if spec.max_tokens >= structure.context_length:
        raise ContextLengthExceeded(
            f"max_tokens {spec.max_tokens} leaves no room for a prompt: {spec.model} has a "
            f"context of {structure.context_length} tokens",
            param="sampling.max_tokens",
        )


def check_biased(spec: Spec, structure: ModelStructure | None) -> None:
    """Raises InvalidRequest where a token is biased that the model does not have."""
    if structure is not None and isinstance(spec, GeneratingSpec):
        check_sampling(spec.sampling, structure)


def check_template(spec: Spec, structure: ModelStructure | None) -> None:
    """Refuse what needs a chat template where none is, or none shall be used."""
    lacks_template = structure is not None and not structure.chat_template
    why = f"{spec.model} has no chat template"
    if isinstance(spec, CaptureJobSpec | ExtractSpec | ChatJobSpec):
        inputs: Sequence[CaptureInput | ChatInput] = spec.inputs or ()
        for place, given in enumerate(inputs):
            if given.messages is not None and lacks_template:
                raise InvalidRequest(f"{why}; send a prompt instead", param=f"inputs.{place}.messages")
        return
    if spec.apply_chat_template and lacks_template:
        raise InvalidRequest(f"{why}; leave apply_chat_template out", param="apply_chat_template")
    if spec.uses_tools and lacks_template:
        raise InvalidRequest(f"{why}, and tools are offered through one", param="mode")
    if spec.apply_chat_template is False:
        lacks_template, why = True, "apply_chat_template is false"
    for place, condition in enumerate(spec.conditions):
        if condition.system is not None and lacks_template:
            raise InvalidRequest(
                f"a system message needs a chat template, and {why}; use prefix or suffix instead",
                param=f"conditions.{place}.system",
            )


def _check_count(count: int) -> int:
    if count > MAX_SAMPLES:
        raise InvalidRequest(
            f"the job has {count} samples or more, one job may have {MAX_SAMPLES}; split it with offset and "
            "limit"
        )
    return count


def _most_rows(limit: int | None, per_row: int) -> int:
    """Rows to read at most: one more than allowed is enough to know that there are too many."""
    most = MAX_SAMPLES // per_row + 1
    return most if limit is None else min(limit, most)


def _read_datasets(
    services: Services, spec: EvaluationSpec
) -> tuple[EvaluationSpec, RowSpool[DatasetRow] | None]:
    """The spec with its paths resolved, and the rows to run where they can be read here."""
    dataset = _locate(services, spec.dataset, "dataset")
    fewshot = _locate(services, spec.fewshot_dataset, "fewshot_dataset") if spec.fewshot_dataset else None
    spec = spec.model_copy(update={"dataset": dataset, "fewshot_dataset": fewshot})
    spec = task_files.with_task(services, spec)
    scoring = JobScoring(spec)
    per_row = len(spec.conditions) * spec.epochs
    rows: RowSpool[DatasetRow] | None = None
    if not isinstance(dataset, HubDataset):
        limit = _most_rows(spec.limit, per_row)
        found = _rows(services, dataset, "dataset", spec.task, limit=limit, offset=spec.offset)
        rows = row_spool.problems(_answerable(found, scoring))
        _check_count(len(rows) * per_row)
    if spec.num_fewshot:
        _check_fewshot(services, spec)
    return spec, rows


def _answerable(rows: Iterator[DatasetRow], scoring: JobScoring) -> Iterator[DatasetRow]:
    """The same rows. Raises InvalidDataset for a row that no completion could answer rightly."""
    fault: InvalidDataset | None = None
    for row in rows:
        try:
            scoring.check(row.input)
        except InvalidDataset as error:
            fault = fault or InvalidDataset(f"row {row.index}: {error.message}", param="dataset")
        if fault is None:
            yield row
    if fault is not None:
        raise fault


def _check_fewshot(services: Services, spec: EvaluationSpec) -> None:
    """Refuse fewer rows than the examples need; which ones are shown is the worker's draw."""
    source, field = spec.fewshot_dataset, "fewshot_dataset"
    if source is None:
        source, field = spec.dataset, "dataset"
    # a tested problem is never its own example
    needed = spec.num_fewshot + (source == spec.dataset)
    if isinstance(source, HubDataset) or spec.own_examples:
        return
    found = sum(1 for _ in _rows(services, source, field, spec.task))
    if found < needed:
        raise InvalidDataset(
            f"num_fewshot {spec.num_fewshot} needs {needed} rows to choose from; there are {found}",
            param="num_fewshot",
        )


def _rows(
    services: Services,
    dataset: FileDataset | PathDataset,
    field: str,
    task: object,
    *,
    limit: int | None = None,
    offset: int = 0,
) -> Iterator[DatasetRow]:
    with _named(field):
        yield from dataset_sources.read(
            dataset,
            Uploads(services.database, services.store),
            services.settings.data_roots,
            limit=limit,
            offset=min(offset, FARTHEST_ROW),
            reader=row_form(task),
        )


def _texts(
    services: Services, dataset: FileDataset | PathDataset, spec: ExtractSpec, limit: int
) -> Iterator[TextRow]:
    with _named("dataset"):
        yield from dataset_sources.read_text_rows(
            dataset,
            spec.text_field,
            Uploads(services.database, services.store),
            services.settings.data_roots,
            limit=limit,
            offset=min(spec.offset, FARTHEST_ROW),
        )


def _locate(
    services: Services, dataset: FileDataset | PathDataset | HubDataset, field: str
) -> FileDataset | PathDataset | HubDataset:
    """The dataset, its path resolved and its format named; a link that changes does not move the job."""
    if isinstance(dataset, PathDataset):
        with _named(field):
            found = dataset_sources.allowed_path(dataset.path, services.settings.data_roots)
        return PathDataset(path=str(found), format=dataset.format or format_of(dataset.path))
    if isinstance(dataset, FileDataset):
        with services.database.read() as session:
            upload = require_upload(session, dataset.file_id, field)
            return dataset.model_copy(update={"format": dataset.format or format_of(upload.filename)})
    return dataset


@contextmanager
def _named(field: str) -> Iterator[None]:
    """Errors about `dataset` told of `field`, which may be the few-shot dataset."""
    try:
        yield
    except InvalidDataset as error:
        param = (error.param or "dataset").replace("dataset", field, 1)
        raise InvalidDataset(error.message, param=param) from error.__cause__
    except OSError as error:
        raise InvalidDataset(f"the file cannot be read: {error.strerror}", param=field) from error


def require_upload(session: Session, file_id: str, field: str, *, keep: bool = False) -> FileRow:
    """`keep`: until the transaction ends. Raises InvalidDataset where it is not there."""
    try:
        return (files.keep if keep else files.get)(session, file_id)
    except NotFound:
        raise InvalidDataset(
            f"there is no file {file_id}; upload it through /v1/files", param=f"{field}.file_id"
        ) from None
