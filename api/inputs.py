"""Inputs of a job: the files that it names, and the rows of its datasets. Each dataset is read once.

Only workers read datasets of the Hub.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from actograph.contract.errors import InvalidDataset
from actograph.contract.job_specs import CaptureJobSpec, EvaluationSpec
from actograph.contract.specs import DatasetRef, FileDataset, HubDataset, PathDataset
from actograph.contract.task_files import MAX_FILE_BYTES
from actograph.contract.tasks import TaskFile, TaskPath
from api import submission
from api.dependencies import Services
from evals.dataset_readers import format_of
from evals.dataset_rows import DatasetRow, RowForm, nothing_at
from storage.files import dataset_sources
from storage.files.dataset_sources import Uploads
from storage.submission import named

D = TypeVar("D", EvaluationSpec, CaptureJobSpec)

#: larger offsets select nothing in any file, and are not counted to
FARTHEST_ROW = 1 << 40


def located(services: Services, spec: D) -> D:
    """The spec with the place and the format of its datasets, which no link or name changes later.

    Raises:
        InvalidDataset: there is no such file, or a path is outside the data roots.
    """
    changes: dict[str, DatasetRef] = {}
    for field in named.DATASETS:
        dataset = getattr(spec, field, None)
        if isinstance(dataset, PathDataset):
            with _naming(field):
                path = str(dataset_sources.allowed_path(dataset.path, services.settings.data_roots))
            changes[field] = PathDataset(path=path, format=dataset.format or format_of(dataset.path))
        elif isinstance(dataset, FileDataset):
            with services.database.read() as session:
                file = named.upload(session, dataset.file_id, field)
            changes[field] = FileDataset(file_id=file.id, format=dataset.format or format_of(file.filename))
    return spec.model_copy(update=changes)


def task_file(services: Services, task: TaskFile | TaskPath) -> bytes:
    """Read a task file, at most a little more than it may have. Raises InvalidDataset."""
    with _naming("task"):
        if isinstance(task, TaskFile):
            return Uploads(services.database, services.store).open(task.file_id).read(MAX_FILE_BYTES + 1)
        with dataset_sources.allowed_path(task.path, services.settings.data_roots).open("rb") as stream:
            return stream.read(MAX_FILE_BYTES + 1)


def rows(services: Services, spec: D, form: RowForm) -> list[DatasetRow]:
    """Read the chosen rows of a job, each once; none if only the worker can read its dataset.

    At most one row above the limit of a job's samples: enough to refuse it.

    Raises:
        InvalidDataset: a row is not valid, or there are too few for the few-shot examples.
    """
    most = submission.MAX_SAMPLES // submission.samples_of_each(spec) + 1
    limit = most if spec.limit is None else min(spec.limit, most)
    offset = min(spec.offset, FARTHEST_ROW)
    if not isinstance(spec, EvaluationSpec) or not spec.num_fewshot or spec.own_examples:
        return list(_read(services, spec, "dataset", form, limit=limit, offset=offset))
    # the worker draws examples from the pool; a tested problem is never its own example
    is_own_pool = spec.fewshot_dataset in (None, spec.dataset)
    needed, pool = spec.num_fewshot + is_own_pool, spec.fewshot_dataset or spec.dataset
    if is_own_pool:
        chosen, found = [], 0
        for row in _read(services, spec, "dataset", form):
            found += 1
            if offset <= row.index < offset + limit:
                chosen.append(row)
        if found and not chosen:
            raise nothing_at(offset)
    else:
        chosen = list(_read(services, spec, "dataset", form, limit=limit, offset=offset))
        found = sum(1 for _ in _read(services, spec, "fewshot_dataset", form))
    if found < needed and not isinstance(pool, HubDataset):
        raise InvalidDataset(
            f"num_fewshot {spec.num_fewshot} needs {needed} rows to choose from; there are {found}",
            param="num_fewshot",
        )
    return chosen


def _read(
    services: Services, spec: D, field: str, form: RowForm, *, limit: int | None = None, offset: int = 0
) -> Iterator[DatasetRow]:
    """Rows of the dataset in a field of the spec; none of the Hub's."""
    dataset: DatasetRef | None = getattr(spec, field)
    if dataset is not None and not isinstance(dataset, HubDataset):
        uploads, roots = Uploads(services.database, services.store), services.settings.data_roots
        with _naming(field):
            yield from dataset_sources.read(dataset, uploads, roots, form, limit=limit, offset=offset)


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
