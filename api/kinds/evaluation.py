"""Evaluations: a task's prompts on the rows of a dataset, and its scorers."""

from functools import partial

from actograph.contract.errors import InvalidDataset, InvalidRequest
from actograph.contract.job_specs import EvaluationSpec, validated
from actograph.contract.specs import BUILT_IN_TOOLS
from actograph.contract.task_files import read_task_file, task_from
from actograph.contract.tasks import TaskFile, TaskPath
from actograph.settings import functions_of
from api import checks, inputs
from api.dependencies import Services
from api.submission import Submission, outlook, with_defaults
from evals.scoring.scorers import ScorerSet
from evals.task_rows import row_form
from storage.samples.expansion import evaluation_samples


def resolve(services: Services, body: EvaluationSpec) -> EvaluationSpec:
    """Find the datasets, replace a task file by its content, and set the defaults.

    Raises:
        InvalidDataset, UnknownModel
        InvalidRequest: an invalid task file, or a tool that the service does not have.
    """
    spec = inputs.located(services, body)
    if isinstance(spec.task, TaskFile | TaskPath):
        fields = read_task_file(inputs.task_file(services, spec.task))
        fields.pop("dataset", None)  # only for the command line
        task = task_from(fields)
        # defaults of the spec, such as the number of examples, depend on the task
        given = {name: getattr(spec, name) for name in spec.model_fields_set}
        spec = validated(EvaluationSpec, given | {"task": task.model_dump()})
    known = [*BUILT_IN_TOOLS, *functions_of(services.settings.user_tools)]
    for name in (name for condition in spec.conditions for name in spec.tools_of(condition)):
        if name not in known:
            raise InvalidRequest(
                f"there is no tool {name!r}; the tools are {', '.join(known)}", param="tools"
            )
    return with_defaults(services, spec)


def check(services: Services, spec: EvaluationSpec, owner: str) -> Submission[EvaluationSpec]:
    """Compare the spec with its model. Raises the errors of `checks.passed`."""
    return checks.passed(outlook(services, spec, owner), checks.task_messages)


def expand(services: Services, submission: Submission[EvaluationSpec]) -> Submission[EvaluationSpec]:
    """One sample for each row, condition and epoch.

    Raises:
        InvalidDataset: a row does not fit the task or a scorer, or there are too few rows for the examples.
        InvalidRequest: an invalid template, an unknown scorer, or too many samples.
    """
    spec = submission.spec
    rows = inputs.rows(services, spec, row_form(spec.task))
    scorers = ScorerSet.of(spec, services.scorers)
    for row in rows:
        try:
            scorers.check_target(row.answer)
        except InvalidDataset as error:
            raise InvalidDataset(f"row {row.index}: {error.message}", param="dataset") from None
    return submission.with_samples(partial(evaluation_samples, spec, rows), len(rows))
