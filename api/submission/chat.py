"""Chats and completions: resolve, check and expand."""

from dataclasses import replace

from actograph.contract.chat.chat_job import ChatJobSpec
from api.dependencies import Services
from api.submission import steps
from api.submission.steps import Checked, Resolved, Submission
from storage.samples.expansion import chat_samples


def resolve(services: Services, spec: ChatJobSpec, owner: str | None) -> Resolved[ChatJobSpec]:
    """Set the defaults. A default of `max_tokens` never exceeds the context of the model."""
    resolved = steps.resolve(services, spec, owner)
    structure = resolved.outlook.structure
    if structure is None or any(given.max_tokens is not None for given in spec.inputs):
        return resolved
    most = min(spec.sampling.max_tokens, structure.context_length - 1)
    sampling = spec.sampling.model_copy(update={"max_tokens": most})
    return replace(resolved, spec=resolved.spec.model_copy(update={"sampling": sampling}))


check = steps.check


def expand(checked: Checked[ChatJobSpec]) -> Submission:
    """One sample for each choice of each prompt."""
    spec = checked.spec
    return checked.submission(lambda: chat_samples(spec), len(spec.inputs) * spec.epochs)
