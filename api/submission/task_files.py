"""Task files of clients: uploaded, or under a data root."""

from pydantic import ValidationError

from actograph.contract.errors import InvalidDataset, InvalidRequest
from actograph.contract.specs import EvaluationSpec
from actograph.contract.tasks import TaskFile, TaskPath, TaskSpec
from actograph.tasks.files import MAX_FILE_BYTES, read_task_file, task_from
from actograph.tasks.rows import RowForm, examples_of
from api.dependencies import Services
from storage.files import dataset_sources
from storage.files.dataset_sources import Uploads


def with_task(services: Services, spec: EvaluationSpec) -> EvaluationSpec:
    """The spec with what its task's file holds in the file's place, and the templates checked.

    Raises:
        InvalidRequest: no such file, no task in it, or a template that is none.
        InvalidDataset: an example lacks a column.
    """
    if isinstance(spec.task, TaskFile | TaskPath):
        fields = read_task_file(_content(services, spec.task))
        fields.pop("dataset", None)  # for the command line; a job names its dataset itself
        task = task_from(fields)
        # what is left to the task, such as the number of its examples, follows from the file
        given = {name: getattr(spec, name) for name in spec.model_fields_set} | {"task": task.model_dump()}
        try:
            spec = EvaluationSpec.model_validate(given)
        except ValidationError as error:
            raise InvalidRequest(error.errors(include_url=False)[0]["msg"], param="task") from None
    if isinstance(spec.task, TaskSpec):
        RowForm(spec.task)
        examples_of(spec.task)
    return spec


def _content(services: Services, task: TaskFile | TaskPath) -> bytes:
    """At most a little more than a task file may have."""
    if isinstance(task, TaskPath):
        try:
            path = dataset_sources.allowed_path(task.path, services.settings.data_roots)
            with path.open("rb") as stream:
                return stream.read(MAX_FILE_BYTES + 1)
        except InvalidDataset as error:
            raise InvalidRequest(error.message, param="task.path") from None
        except OSError as error:
            raise InvalidRequest(f"the file cannot be read: {error.strerror}", param="task.path") from error
    content = bytearray()
    try:
        for chunk in Uploads(services.database, services.store).open(task.file_id).stream():
            content += chunk
            if len(content) > MAX_FILE_BYTES:
                break
    except InvalidDataset as error:
        raise InvalidRequest(error.message, param="task.file_id") from None
    return bytes(content)
