"""Checks of a submission: its spec against the structure of its model. All take a submission alone.

Without a structure, since no worker has loaded the model yet, the worker makes these checks.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from actograph.contract import hooks, readouts
from actograph.contract.errors import ContextLengthExceeded, InvalidRequest, UnknownHook
from actograph.contract.head_columns import columns_of
from actograph.contract.interventions import (
    AfterReadout,
    check_stored,
    check_width,
    each,
    of_columns,
    resolve_hook,
)
from actograph.contract.job_specs import (
    CaptureJobSpec,
    EvaluationSpec,
    InputJobSpec,
    captured_hooks,
    check_capture,
    check_sampling,
)
from actograph.contract.models import ModelStructure
from actograph.contract.readouts import bias_of, name_of, resolve_readout, short_name, stored_name
from actograph.contract.saes import check_latent, latents_name, require_distinct, resolve_sae
from actograph.contract.specs import JobSpecBase, ModelJobSpec
from actograph.contract.tool_calls import NOT_OFFERED
from api.submission import Submission
from evals.prompts import varied_messages

M = TypeVar("M", bound=ModelJobSpec)

#: raises an ActographError that names the field
Check = Callable[[Submission[Any]], None]


def passed(submission: Submission[M], *checks: Check) -> Submission[M]:
    """The submission with the names of its captured hooks, after the checks of every model and its own.

    Raises:
        UnknownHook, InvalidRequest, ContextLengthExceeded: the error names the field.
    """
    submission = captured(submission)
    for check in (interventions, length, sampling, *checks):
        check(submission)
    return submission


def captured(submission: Submission[M]) -> Submission[M]:
    """The submission with the canonical names of its captured hooks. Raises UnknownHook, InvalidRequest."""
    capture, structure = submission.spec.capture, submission.structure
    if capture is None:
        return replace(submission, hooks=[])
    if structure is None:
        encoded(submission)
        read_out(submission)
        return submission
    try:
        names = captured_hooks(capture, structure)
    except UnknownHook as error:
        raise UnknownHook(error.message, param=f"capture.{error.param or 'hooks'}") from None
    check_capture(capture, names, structure)
    names += [*encoded(submission), *read_out(submission)]
    return replace(submission, spec=with_layers(submission.spec, structure), hooks=names)


def encoded(submission: Submission[Any]) -> list[str]:
    """Names of the latents that a capture stores.

    Raises:
        UnknownHook: the model lacks the hook of an SAE.
        InvalidRequest: an SAE does not suit the hook or the model, or is named twice.
    """
    spec, found = submission.spec, list[str]()
    for place, one in enumerate(spec.capture.saes):
        param = f"capture.saes.{place}"
        sae = submission.saes[param]
        resolve_sae(one, sae, spec.model, submission.structure, param)
        found.append(sae.name)
    require_distinct(found)
    return [latents_name(name) for name in found]


def read_out(submission: Submission[Any]) -> list[str]:
    """Stored names of the readouts of a capture.

    Raises:
        UnknownHook: the model lacks the hook of a readout.
        InvalidRequest: a vector does not suit the hook or the model, or two readouts have one name.
    """
    spec, found = submission.spec, list[str]()
    for place, one in enumerate(spec.capture.readouts):
        param = f"capture.readouts.{place}"
        vector = submission.vectors[param]
        resolve_readout(one, vector, spec.model, submission.structure, param)
        bias_of(one, vector, param)
        found.append(name_of(one, vector))
    readouts.require_distinct(found)
    return [stored_name(name) for name in found]


def with_layers(spec: M, structure: ModelStructure) -> M:
    """The spec with the numbers of the layers that `layers: null` stands for.

    It stays null where one of them lacks a point, since a layer that is listed must have it.
    """
    capture = spec.capture
    if capture is None or capture.layers is not None or not capture.captures_hooks:
        return spec
    if not hooks.uses_layers(capture.points, capture.hooks):
        return spec
    chosen = capture.model_copy(update={"layers": hooks.select_layers(None, structure.num_layers)})
    try:
        hooks.expand(chosen.points, chosen.layers, chosen.hooks, structure)
    except UnknownHook:
        return spec
    return spec.model_copy(update={"capture": chosen})


def interventions(submission: Submission[Any]) -> None:
    """Raises UnknownHook, or InvalidRequest for a vector of another model or width."""
    spec, structure = submission.spec, submission.structure
    for param, one in each(getattr(spec, "interventions", ()), getattr(spec, "conditions", ())):
        if one.after is not None:
            after_readout(submission, one.after, f"{param}.after")
        vector, sae = submission.vectors.get(param), submission.saes.get(param)
        if sae is not None and one.latent is not None:
            check_latent(sae, one.latent, spec.model, param)
        if vector is not None:
            check_stored(one, vector, spec.model, f"{param}.vector_id")
        if structure is None:
            continue
        hook = resolve_hook(one.hook, structure, f"{param}.hook")
        known = structure.tensor_of(hook)
        if known is None:
            continue  # only the worker knows the width
        columns = columns_of(one.features, hook, structure, f"{param}.features")
        if sae is not None:
            check_width(hook, sae.config.d_in, known.width, f"{param}.sae", columns)
        elif vector is not None:
            check_width(hook, vector.width, known.width, f"{param}.vector_id", columns)
        elif param in submission.source_widths:
            check_width(hook, submission.source_widths[param], known.width, f"{param}.from", columns)
        elif one.vector is not None:
            check_width(hook, len(one.vector), known.width, f"{param}.vector", columns)
            of_columns(one.vector, columns, one, f"{param}.vector")


def after_readout(submission: Submission[Any], after: AfterReadout, param: str) -> None:
    """Raises InvalidRequest if no readout can begin an intervention."""
    spec = submission.spec
    names = [] if spec.capture is None else [short_name(name) for name in read_out(submission)]
    if after.readout not in names:
        known = f"there are {', '.join(names)}" if names else "add it to capture.readouts"
        raise InvalidRequest(f"the capture has no readout {after.readout}; {known}", param=f"{param}.readout")
    try:
        readouts.check_limits(spec.capture.positions, generates=not spec.is_prefill)
        readouts.check_turns(uses_tools=getattr(spec, "uses_tools", False))
    except ValueError as error:
        raise InvalidRequest(str(error), param=param) from None


def length(submission: Submission[Any]) -> None:
    """Raises ContextLengthExceeded if `max_tokens` leaves no room for a prompt."""
    spec, structure = submission.spec, submission.structure
    if structure is not None and spec.max_tokens >= structure.context_length:
        raise ContextLengthExceeded(
            f"max_tokens {spec.max_tokens} leaves no room for a prompt: {spec.model} has a "
            f"context of {structure.context_length} tokens",
            param="sampling.max_tokens",
        )


def sampling(submission: Submission[Any]) -> None:
    """Raises InvalidRequest if the model lacks a token that is named, or its engine."""
    if submission.structure is not None:
        if isinstance(submission.spec, JobSpecBase):
            check_sampling(submission.spec.sampling, submission.structure)
        submission.structure.engine_for(submission.spec.engine)


def prompt_conditions(submission: Submission[CaptureJobSpec]) -> None:
    """Raises InvalidRequest if a condition changes what an input does not have."""
    inputs = submission.spec.inputs
    plain = next((place for place, one in enumerate(inputs or ()) if one.messages is None), None)
    for number, condition in enumerate(submission.spec.conditions):
        field = f"conditions.{number}"
        if condition.system is not None and (inputs is None or plain is not None):
            which = "the dataset's texts are" if inputs is None else f"inputs.{plain} is"
            raise InvalidRequest(
                f"a system message needs conversations, and {which} plain text; send messages, or a prefix",
                param=f"{field}.system",
            )
        for place, given in enumerate(inputs or ()):
            if given.messages is None:
                continue
            try:
                varied_messages([one.model_dump() for one in given.messages], condition)
            except InvalidRequest as error:
                raise InvalidRequest(error.message, param=f"inputs.{place}.messages") from None


def messages(submission: Submission[Any]) -> None:
    """Raises InvalidRequest for a conversation if the model has no chat template."""
    spec: InputJobSpec = submission.spec
    if submission.structure is None or submission.structure.chat_template:
        return
    for place, given in enumerate(getattr(spec, "inputs", None) or ()):
        if given.messages is not None:
            raise InvalidRequest(
                f"{spec.model} has no chat template; send a prompt instead", param=f"inputs.{place}.messages"
            )


def task_messages(submission: Submission[Any]) -> None:
    """Raises InvalidRequest if conditions or tools need a chat template, and there is none."""
    spec: EvaluationSpec = submission.spec
    structure = submission.structure
    lacks_template = structure is not None and not structure.chat_template
    why = f"{spec.model} has no chat template"
    if spec.apply_chat_template and lacks_template:
        raise InvalidRequest(f"{why}; leave apply_chat_template out", param="apply_chat_template")
    # annotations need no template: the prompt shows them
    is_offered = spec.uses_tools and spec.tool_format == "template"
    if is_offered and lacks_template:
        raise InvalidRequest(f"{why}, and tools are offered through one", param="tools")
    if spec.apply_chat_template is False:
        lacks_template, why = True, "apply_chat_template is false"
    for place, condition in enumerate(spec.conditions):
        if condition.system is not None and lacks_template:
            raise InvalidRequest(
                f"a system message needs a chat template, and {why}; use prefix or suffix instead",
                param=f"conditions.{place}.system",
            )
    if is_offered and structure is not None and structure.tool_calls is False:
        raise InvalidRequest(NOT_OFFERED, param="tools")
