"""Evaluations: resolve, check and expand."""

from collections.abc import Iterator

from pydantic import ValidationError

from actograph.contract.errors import InvalidDataset, InvalidRequest
from actograph.contract.specs import EvaluationSpec, FileDataset, HubDataset, PathDataset
from actograph.contract.tasks import TaskFile, TaskPath, TaskSpec
from actograph.datasets.dataset_rows import DatasetRow
from actograph.scoring.of_job import JobScoring
from actograph.tasks.files import read_task_file, task_from
from actograph.tasks.rows import RowForm, examples_of, row_form
from api.dependencies import Services
from api.submission import datasets, steps
from api.submission.steps import Checked, Resolved, Submission
from storage.files import dataset_sources
from storage.files.dataset_sources import Uploads
from storage.samples.expansion import evaluation_samples
from storage.submission import row_spool


def resolve(services: Services, spec: EvaluationSpec, owner: str | None) -> Resolved[EvaluationSpec]:
    """Locate the datasets, read the task file and set the defaults.

    Raises:
        InvalidRequest: there is no such task file, or the task is not valid.
        InvalidDataset: there is no such dataset, or an example lacks a column.
    """
    fewshot = spec.fewshot_dataset
    changes = {
        "dataset": datasets.locate(services, spec.dataset, "dataset"),
        "fewshot_dataset": fewshot and datasets.locate(services, fewshot, "fewshot_dataset"),
    }
    spec = _with_task(services, spec.model_copy(update=changes))
    uploads = datasets.uploads(dataset=spec.dataset, fewshot_dataset=spec.fewshot_dataset)
    return steps.resolve(services, spec, owner, uploads)


def _with_task(services: Services, spec: EvaluationSpec) -> EvaluationSpec:
    """Replace a task file by its content, and check templates and examples."""
    if isinstance(spec.task, TaskFile | TaskPath):
        fields = read_task_file(datasets.task_file(services, spec.task))
        fields.pop("dataset", None)  # only for the command line
        task = task_from(fields)
        # defaults of the spec, such as the number of examples, depend on the task
        given = {name: getattr(spec, name) for name in spec.model_fields_set} | {"task": task.model_dump()}
        try:
            spec = EvaluationSpec.model_validate(given)
        except ValidationError as error:
            raise InvalidRequest(error.errors(include_url=False)[0]["msg"], param="task") from None
    if isinstance(spec.task, TaskSpec):
        RowForm(spec.task)
        examples_of(spec.task)
    return spec


def check(resolved: Resolved[EvaluationSpec]) -> Checked[EvaluationSpec]:
    """Compare the spec with the model. Raises InvalidRequest if it needs a chat template without one."""
    checked = steps.check(resolved)
    spec, structure = resolved.spec, resolved.outlook.structure
    lacks_template = structure is not None and not structure.chat_template
    why = f"{spec.model} has no chat template"
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
    return checked


def expand(checked: Checked[EvaluationSpec]) -> Submission:
    """One sample for each row, condition and epoch.

    Raises:
        InvalidDataset: a row is not valid, or there are too few rows for the examples.
        InvalidRequest: there are too many samples.
    """
    spec, services = checked.spec, checked.resolved.services
    scoring = JobScoring(spec)
    per_row = len(spec.conditions) * spec.epochs
    if isinstance(spec.dataset, HubDataset):
        submission = checked.submission(lambda: evaluation_samples(spec, ()), None)
    else:
        limit = datasets.most_rows(spec.limit, per_row)
        found = _rows(services, spec, spec.dataset, "dataset", limit=limit, offset=spec.offset)
        rows = row_spool.problems(_answerable(found, scoring))
        submission = checked.submission(lambda: evaluation_samples(spec, rows), len(rows) * per_row)
    if spec.num_fewshot:
        _check_fewshot(services, spec)
    return submission


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
    # a tested problem is never its own example
    needed = spec.num_fewshot + (source == spec.dataset)
    if isinstance(source, HubDataset) or spec.own_examples:
        return
    found = sum(1 for _ in _rows(services, spec, source, field))
    if found < needed:
        raise InvalidDataset(
            f"num_fewshot {spec.num_fewshot} needs {needed} rows to choose from; there are {found}",
            param="num_fewshot",
        )


def _rows(
    services: Services,
    spec: EvaluationSpec,
    dataset: FileDataset | PathDataset,
    field: str,
    *,
    limit: int | None = None,
    offset: int = 0,
) -> Iterator[DatasetRow]:
    with datasets.named(field):
        yield from dataset_sources.read(
            dataset,
            Uploads(services.database, services.store),
            services.settings.data_roots,
            limit=limit,
            offset=min(offset, datasets.FARTHEST_ROW),
            reader=row_form(spec.task),
        )
