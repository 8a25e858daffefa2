"""Check: compare a resolved spec with the structure of its model.

Without a structure, since no worker has loaded the model yet, the worker makes these checks.
"""

from collections.abc import Sequence

from actograph.contract import hooks
from actograph.contract.chat_job import ChatInput
from actograph.contract.errors import ContextLengthExceeded, InvalidRequest, UnknownHook
from actograph.contract.interventions import StoredVector, check_stored, check_width, each, resolve_hook
from actograph.contract.job_specs import CaptureInput, EvaluationSpec, check_capture, check_sampling
from actograph.contract.models import ModelStructure
from actograph.contract.specs import CaptureSpec
from actograph.contract.tool_calls import NOT_OFFERED
from storage.jobs.jobs import Spec


def check_length(spec: Spec, structure: ModelStructure | None) -> None:
    """Raises ContextLengthExceeded if `max_tokens` leaves no room for a prompt."""
    if structure is not None and spec.max_tokens >= structure.context_length:
        raise ContextLengthExceeded(
            f"max_tokens {spec.max_tokens} leaves no room for a prompt: {spec.model} has a "
            f"context of {structure.context_length} tokens",
            param="sampling.max_tokens",
        )


def check_hooks(
    spec: Spec, structure: ModelStructure | None, stored: dict[str, StoredVector]
) -> list[str] | None:
    """Check captured hooks and interventions, and return the canonical names of the captured hooks.

    Returns None without a structure.

    Args:
        stored: stored vectors by the field that names them.

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
            continue  # only the worker knows the width
        if vector is not None:
            check_width(hook, vector.width, known.width, f"{param}.vector_id")
        elif one.vector is not None:
            check_width(hook, len(one.vector), known.width, f"{param}.vector")
    return names


def check_prompts(spec: Spec, structure: ModelStructure | None) -> None:
    """Check the engine, `logit_bias` and the messages of a spec.

    Raises:
        InvalidRequest: the model lacks a token or needs traces, or the spec needs a chat template and there
            is none.
    """
    if structure is not None:
        check_sampling(spec.sampling, structure)
        structure.engine_for(spec.engine)
    lacks_template = structure is not None and not structure.chat_template
    if isinstance(spec, EvaluationSpec):
        _check_task_messages(spec, lacks_template=lacks_template)
        if spec.uses_tools and structure is not None and structure.tool_calls is False:
            raise InvalidRequest(NOT_OFFERED, param="tools")
    elif lacks_template:
        inputs: Sequence[CaptureInput | ChatInput] = getattr(spec, "inputs", None) or ()
        for place, given in enumerate(inputs):
            if given.messages is not None:
                raise InvalidRequest(
                    f"{spec.model} has no chat template; send a prompt instead",
                    param=f"inputs.{place}.messages",
                )


def _check_task_messages(spec: EvaluationSpec, *, lacks_template: bool) -> None:
    why = f"{spec.model} has no chat template"
    if spec.apply_chat_template and lacks_template:
        raise InvalidRequest(f"{why}; leave apply_chat_template out", param="apply_chat_template")
    if spec.uses_tools and lacks_template:
        raise InvalidRequest(f"{why}, and tools are offered through one", param="tools")
    if spec.apply_chat_template is False:
        lacks_template, why = True, "apply_chat_template is false"
    for place, condition in enumerate(spec.conditions):
        if condition.system is not None and lacks_template:
            raise InvalidRequest(
                f"a system message needs a chat template, and {why}; use prefix or suffix instead",
                param=f"conditions.{place}.system",
            )


def _captured_hooks(capture: CaptureSpec | None, structure: ModelStructure | None) -> list[str] | None:
    if capture is None:
        return []
    if structure is None:
        return None
    try:
        names = hooks.expand(capture.points, capture.layers, capture.hooks, structure)
    except UnknownHook as error:
        raise UnknownHook(error.message, param=f"capture.{error.param or 'hooks'}") from None
    check_capture(capture, names, structure)
    return names
