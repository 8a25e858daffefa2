"""Expand: read the dataset of a checked spec and make its samples."""

from collections.abc import Callable, Iterator
from functools import partial

from actograph.contract.errors import InvalidDataset, InvalidRequest
from actograph.contract.specs import (
    CaptureJobSpec,
    EvaluationSpec,
    FileDataset,
    HubDataset,
    PathDataset,
)
from actograph.datasets.dataset_rows import DatasetRow, R, RowForm, Texts
from actograph.scoring.of_job import JobScoring
from actograph.tasks.rows import row_form
from api.dependencies import Services
from api.submission import datasets
from api.submission.resolve import Spec
from storage.files import dataset_sources
from storage.files.dataset_sources import Uploads
from storage.samples import NewSample
from storage.samples.expansion import capture_samples, chat_samples, evaluation_samples

#: a larger job would make one transaction too long
MAX_SAMPLES = 200_000
#: larger offsets select nothing in any file, and are not counted to
FARTHEST_ROW = 1 << 40

#: makes the samples of a job, each time anew, and their number; None if only the worker can read the dataset
Samples = tuple[Callable[[], Iterator[NewSample]], int | None]


def expand_spec(services: Services, spec: Spec) -> Samples:
    """One sample for each row or input, condition and epoch.

    Raises:
        InvalidDataset: a row is not valid, or there are too few rows for the examples.
        InvalidRequest: there are too many samples.
    """
    if isinstance(spec, EvaluationSpec):
        samples, total = _evaluation(services, spec)
        _check_fewshot(services, spec)
    elif isinstance(spec, CaptureJobSpec):
        samples, total = _capture(services, spec)
    else:
        samples, total = partial(chat_samples, spec), len(spec.inputs) * spec.epochs
    if (total or 0) > MAX_SAMPLES:
        raise InvalidRequest(
            f"the job has {total} samples or more, one job may have {MAX_SAMPLES}; split it with offset "
            "and limit"
        )
    return samples, total


def _capture(services: Services, spec: CaptureJobSpec) -> Samples:
    per_row = max(1, len(spec.conditions)) * spec.epochs
    if spec.dataset is None:
        return partial(capture_samples, spec), len(spec.inputs or ()) * per_row
    if isinstance(spec.dataset, HubDataset):
        return partial(capture_samples, spec), None
    most = _most_rows(spec.limit, per_row)
    rows = list(_rows(services, spec.dataset, Texts(spec.text_field), limit=most, offset=spec.offset))
    return partial(capture_samples, spec, rows), len(rows) * per_row


def _evaluation(services: Services, spec: EvaluationSpec) -> Samples:
    scoring = JobScoring(spec)
    if isinstance(spec.dataset, HubDataset):
        return partial(evaluation_samples, spec, ()), None
    per_row = len(spec.conditions) * spec.epochs
    most = _most_rows(spec.limit, per_row)
    found = _rows(services, spec.dataset, row_form(spec.task), limit=most, offset=spec.offset)
    rows = list(_answerable(found, scoring))
    return partial(evaluation_samples, spec, rows), len(rows) * per_row


def _most_rows(limit: int | None, per_row: int) -> int:
    """Number of rows to read: one above the limit is enough to refuse the job."""
    most = MAX_SAMPLES // per_row + 1
    return most if limit is None else min(limit, most)


def _answerable(rows: Iterator[DatasetRow], scoring: JobScoring) -> Iterator[DatasetRow]:
    """Pass the rows on. Raises InvalidDataset for a row without a possible correct answer."""
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
    form: RowForm[R],
    *,
    field: str = "dataset",
    limit: int | None = None,
    offset: int = 0,
) -> Iterator[R]:
    uploads, roots = Uploads(services.database, services.store), services.settings.data_roots
    with datasets.named(field):
        yield from dataset_sources.read(
            dataset, uploads, roots, form, limit=limit, offset=min(offset, FARTHEST_ROW)
        )
