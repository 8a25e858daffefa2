"""Datasets and task files of jobs: uploaded, or under a data root."""

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import BaseModel
from sqlalchemy.orm import Session

from actograph.contract.errors import InvalidDataset, InvalidRequest, NotFound
from actograph.contract.specs import FileDataset, HubDataset, PathDataset
from actograph.contract.tasks import TaskFile, TaskPath
from actograph.datasets.readers import format_of
from actograph.tasks.files import MAX_FILE_BYTES
from api.dependencies import Services
from storage.files import dataset_sources, files
from storage.files.dataset_sources import Uploads
from storage.tables.models import FileRow

Dataset = FileDataset | PathDataset | HubDataset
#: fields of specs that name a dataset
FIELDS = ("dataset", "fewshot_dataset")


def locate(services: Services, dataset: Dataset, field: str) -> Dataset:
    """Resolve the path and format of a dataset; a link that changes later does not affect the job."""
    if isinstance(dataset, PathDataset):
        with named(field):
            found = dataset_sources.allowed_path(dataset.path, services.settings.data_roots)
        return PathDataset(path=str(found), format=dataset.format or format_of(dataset.path))
    if isinstance(dataset, FileDataset):
        with services.database.read() as session:
            upload = require_upload(session, dataset.file_id, field)
            return dataset.model_copy(update={"format": dataset.format or format_of(upload.filename)})
    return dataset


def uploads(spec: BaseModel) -> list[tuple[str, str]]:
    """File id and field of each uploaded dataset of a spec."""
    found = [(getattr(spec, field, None), field) for field in FIELDS]
    return [(dataset.file_id, field) for dataset, field in found if isinstance(dataset, FileDataset)]


def require_upload(session: Session, file_id: str, field: str, *, keep: bool = False) -> FileRow:
    """Find an upload. `keep` prevents its deletion until the transaction ends. Raises InvalidDataset."""
    try:
        return (files.keep if keep else files.get)(session, file_id)
    except NotFound:
        raise InvalidDataset(
            f"there is no file {file_id}; upload it through /v1/files", param=f"{field}.file_id"
        ) from None


@contextmanager
def named(field: str) -> Iterator[None]:
    """Make errors about `dataset` name `field`, which may be the few-shot dataset."""
    try:
        yield
    except InvalidDataset as error:
        param = (error.param or "dataset").replace("dataset", field, 1)
        raise InvalidDataset(error.message, param=param) from error.__cause__
    except OSError as error:
        raise InvalidDataset(f"the file cannot be read: {error.strerror}", param=field) from error


def task_file(services: Services, task: TaskFile | TaskPath) -> bytes:
    """Read a task file, at most a little more than it may have. Raises InvalidRequest."""
    if isinstance(task, TaskPath):
        try:
            path = dataset_sources.allowed_path(task.path, services.settings.data_roots)
            with path.open("rb") as stream:
                return stream.read(MAX_FILE_BYTES + 1)
        except InvalidDataset as error:
            raise InvalidRequest(error.message, param="task.path") from None
        except OSError as error:
            raise InvalidRequest(f"the file cannot be read: {error.strerror}", param="task.path") from error
    try:
        file = Uploads(services.database, services.store).open(task.file_id)
    except InvalidDataset as error:
        raise InvalidRequest(error.message, param="task.file_id") from None
    return file.read(MAX_FILE_BYTES + 1)
