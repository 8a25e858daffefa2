"""Resolve: locate the datasets of a spec, read its task file and set the defaults."""

from typing import Any, TypeVar, cast

from pydantic import ValidationError
from sqlalchemy.orm import Session

from actograph.contract.chat.chat_job import ChatJobSpec
from actograph.contract.errors import InvalidRequest, NotFound
from actograph.contract.interventions import StoredVector, each
from actograph.contract.resources import ModelStructure
from actograph.contract.specs import (
    AnyJobSpec,
    EvaluationSpec,
    ExpiresAfter,
    GeneratingSpec,
)
from actograph.contract.tasks import TaskFile, TaskPath, TaskSpec
from actograph.tasks.files import read_task_file, task_from
from actograph.tasks.rows import RowForm, examples_of
from api.dependencies import Services
from api.submission import datasets
from storage.sessions import vectors

Spec = AnyJobSpec | ChatJobSpec
S = TypeVar("S", bound=Spec)
G = TypeVar("G", bound=GeneratingSpec)


def resolve_spec(services: Services, spec: Spec) -> Spec:
    """Resolve a spec of any kind.

    Raises:
        InvalidDataset: there is no such dataset, or an example lacks a column.
        InvalidRequest: the task is not valid.
        UnknownModel
    """
    changes: dict[str, Any] = {}
    for field in datasets.FIELDS:
        if (dataset := getattr(spec, field, None)) is not None:
            changes[field] = datasets.locate(services, dataset, field)
    spec = spec.model_copy(update=changes)
    if isinstance(spec, EvaluationSpec):
        spec = _with_task(services, spec)
    return with_defaults(services, spec)


def with_defaults(services: Services, spec: S) -> S:
    """The spec with its canonical model and the defaults of the service.

    Raises:
        UnknownModel
    """
    settings = services.settings
    changes: dict[str, Any] = {"model": services.models.require(spec.model)}
    if spec.expires_after is None and settings.expire_after_seconds:
        changes["expires_after"] = ExpiresAfter(seconds=settings.expire_after_seconds)
    if isinstance(spec, GeneratingSpec) and spec.sample_timeout_seconds is None:
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


def stored_vectors(session: Session, spec: Spec, *, keep: bool = False) -> dict[str, StoredVector]:
    """Stored vectors that a spec names, by field.

    Args:
        keep: prevent their deletion until the transaction ends.

    Raises:
        InvalidRequest: there is no such vector.
    """
    named = [
        (one.vector_id, param) for param, one in each(spec.interventions, spec.conditions) if one.vector_id
    ]
    found = {}
    # sorted, since all locks are taken in one order
    for vector_id, param in sorted(named):
        try:
            row = (vectors.keep if keep else vectors.get)(session, vector_id)
        except NotFound:
            raise InvalidRequest(
                f"there is no vector {vector_id}; store it through /v1/interventions",
                param=f"{param}.vector_id",
            ) from None
        found[param] = vectors.resource(row)
    return found


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
