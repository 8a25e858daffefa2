"""Values and checks that the steps of all job kinds share."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from sqlalchemy.orm import Session

from actograph.contract import hooks
from actograph.contract.chat.chat_job import ChatInput, ChatJobSpec
from actograph.contract.errors import ContextLengthExceeded, InvalidRequest, NotFound, UnknownHook
from actograph.contract.interventions import StoredVector, check_stored, check_width, each, resolve_hook
from actograph.contract.resources import ModelStructure
from actograph.contract.specs import (
    AnyJobSpec,
    CaptureInput,
    CaptureSpec,
    EvaluationSpec,
    ExpiresAfter,
    ExtractSpec,
    GeneratingSpec,
)
from actograph.contract.structure_checks import check_capture, check_sampling
from api.dependencies import Services
from api.submission import webhook_targets
from storage.accounts import quotas
from storage.accounts.quotas import Quotas
from storage.queue import routing
from storage.samples import NewSample
from storage.sessions import vectors
from storage.submission import admission

#: a larger job would make one transaction too long
MAX_SAMPLES = 200_000

Spec = AnyJobSpec | ChatJobSpec
S = TypeVar("S", bound=Spec)
#: (field of the spec, file id)
Upload = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """State of the service for a job of one model and priority."""

    #: None if no worker has loaded the model yet
    structure: ModelStructure | None
    #: last reported memory of each live worker that holds the model
    memory: list[dict[str, int]]
    quotas: Quotas
    #: position of the job
    place: int
    #: None if a worker can serve the job
    waiting_reason: str | None


@dataclass(frozen=True, kw_only=True)
class Resolved(Generic[S]):
    """A spec with its defaults, and everything that the check compares it with."""

    services: Services
    owner: str | None
    spec: S
    outlook: Outlook
    #: stored vectors by the field that names them
    vectors: dict[str, StoredVector]
    uploads: tuple[Upload, ...]


@dataclass(frozen=True, kw_only=True)
class Checked(Generic[S]):
    """A spec that fits the model."""

    resolved: Resolved[S]
    #: canonical names; None if the worker must resolve them
    hooks: list[str] | None

    @property
    def spec(self) -> S:
        return self.resolved.spec

    def submission(self, samples: Callable[[], Iterator[NewSample]], total: int | None) -> "Submission":
        """Complete the submission with its samples. Raises InvalidRequest if there are too many."""
        if (total or 0) > MAX_SAMPLES:
            raise InvalidRequest(
                f"the job has {total} samples or more, one job may have {MAX_SAMPLES}; split it with offset "
                "and limit"
            )
        found = self.resolved
        return Submission(
            spec=found.spec,
            outlook=found.outlook,
            hooks=self.hooks,
            samples=samples,
            total=total,
            uploads=found.uploads,
            owner=found.owner,
        )


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job that passed every check and can be inserted."""

    spec: Spec
    outlook: Outlook
    hooks: list[str] | None
    samples: Callable[[], Iterator[NewSample]]
    #: number of samples; None if only the worker can read the dataset
    total: int | None
    uploads: tuple[Upload, ...]
    #: see `storage.accounts.quotas`
    owner: str | None

    @property
    def structure(self) -> ModelStructure | None:
        """None if no worker has loaded the model yet."""
        return self.outlook.structure


def resolve(services: Services, spec: S, owner: str | None, uploads: tuple[Upload, ...] = ()) -> Resolved[S]:
    """Set the defaults of a spec, and read the state of the service and the stored vectors.

    Raises:
        UnknownModel, InvalidRequest
    """
    spec = with_defaults(services, spec)
    with services.database.read() as session:
        outlook = read_outlook(services, session, spec)
        stored = stored_vectors(session, spec)
    return Resolved(
        services=services, owner=owner, spec=spec, outlook=outlook, vectors=stored, uploads=uploads
    )


def with_defaults(services: Services, spec: S) -> S:
    """The spec with its canonical model and the defaults of the service.

    Raises:
        UnknownModel, InvalidRequest
    """
    settings = services.settings
    changes: dict[str, Any] = {
        "model": services.models.require(spec.model),
        "webhook": webhook_targets.check(settings, spec.webhook),
    }
    if spec.expires_after is None and settings.expire_after_seconds:
        changes["expires_after"] = ExpiresAfter(seconds=settings.expire_after_seconds)
    if not isinstance(spec, ExtractSpec) and spec.sample_timeout_seconds is None:
        changes["sample_timeout_seconds"] = settings.sample_timeout_seconds
    if spec.max_consecutive_failures is None:
        changes["max_consecutive_failures"] = settings.max_consecutive_failures
    return cast(S, spec.model_copy(update=changes))


def read_outlook(services: Services, session: Session, spec: Spec) -> Outlook:
    """Read the state of the service for a job."""
    found = admission.read(session, spec.model, spec.priority)
    served = [spec.model] if found.is_held else routing.served_models(session)
    return Outlook(
        structure=services.structures.of(session, spec.model, found.loaded_at),
        memory=found.memory,
        quotas=quotas.read(session, services.settings),
        place=found.place,
        waiting_reason=routing.why_unserved(spec.model, served),
    )


def stored_vectors(session: Session, spec: Spec, *, keep: bool = False) -> dict[str, StoredVector]:
    """Vectors that a spec names, by field. `keep` prevents their deletion until the transaction ends.

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


def check(resolved: Resolved[S]) -> Checked[S]:
    """Compare a spec of any kind with the model: hooks, vectors, context, sampling and messages.

    Raises:
        UnknownHook, ContextLengthExceeded, InvalidRequest
    """
    spec, structure = resolved.spec, resolved.outlook.structure
    names = check_hooks(spec, structure, resolved.vectors)
    if structure is not None and spec.max_tokens >= structure.context_length:
        raise ContextLengthExceeded(
            f"max_tokens {spec.max_tokens} leaves no room for a prompt: {spec.model} has a "
            f"context of {structure.context_length} tokens",
            param="sampling.max_tokens",
        )
    check_bias(spec, structure)
    check_messages(spec, structure)
    return Checked(resolved=resolved, hooks=names)


def check_hooks(
    spec: Spec, structure: ModelStructure | None, stored: dict[str, StoredVector]
) -> list[str] | None:
    """Check captured hooks and interventions, and return the captured hooks.

    Without a structure the result is None, and the worker makes the rest of the checks.

    Raises:
        UnknownHook, InvalidRequest: the error names the field.
    """
    names = _captured_hooks(spec.capture, structure)
    for param, one in each(spec.interventions, spec.conditions):
        vector = stored.get(param)
        if vector is not None:
            check_stored(one.op, vector, spec.model, f"{param}.vector_id")
        if structure is None:
            continue
        hook = resolve_hook(one.hook, structure, f"{param}.hook")
        known = structure.tensor_of(hook)
        if known is None:
            continue  # a structure of an older version: the worker knows the width
        if vector is not None:
            check_width(hook, vector.width, known.width, f"{param}.vector_id")
        elif one.vector is not None:
            check_width(hook, len(one.vector), known.width, f"{param}.vector")
    return names


def _captured_hooks(capture: CaptureSpec | None, structure: ModelStructure | None) -> list[str] | None:
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


def check_bias(spec: Spec, structure: ModelStructure | None) -> None:
    """Raises InvalidRequest if `logit_bias` names a token that the model does not have."""
    if structure is not None and isinstance(spec, GeneratingSpec):
        check_sampling(spec.sampling, structure)


def check_messages(spec: Spec, structure: ModelStructure | None) -> None:
    """Raises InvalidRequest for messages to a model without a chat template."""
    if structure is None or structure.chat_template or isinstance(spec, EvaluationSpec):
        return
    inputs: Sequence[CaptureInput | ChatInput] = spec.inputs or ()
    for place, given in enumerate(inputs):
        if given.messages is not None:
            raise InvalidRequest(
                f"{spec.model} has no chat template; send a prompt instead",
                param=f"inputs.{place}.messages",
            )
