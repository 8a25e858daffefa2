"""Chats: a request in OpenAI's form becomes a job of its prompts, and each choice a sample."""

import re
import secrets
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any

from llguidance import LLMatcher

from actograph.contract.chat_job import ChatJobSpec
from actograph.contract.errors import InvalidRequest
from actograph.contract.models import ModelStructure
from actograph.contract.openai import CompletionBase
from api import checks
from api.dependencies import Services
from api.submission import Submission, outlook, with_defaults, within_context
from storage.samples import NewSample


def resolve(services: Services, body: CompletionBase) -> ChatJobSpec:
    """The job of a request to one of OpenAI's routes.

    Raises:
        UnknownModel
        InvalidRequest: text cannot be constrained by a schema of the request.
    """
    model, structure = services.models.find(body.model), None
    if body.store_activations and model is not None:
        with services.database.read() as session:
            structure = services.structures.find(session, model)
    return with_defaults(services, spec_of(services, body, structure))


def check(services: Services, spec: ChatJobSpec, owner: str) -> Submission[ChatJobSpec]:
    """Compare the spec with its model. Raises the errors of `checks.passed`."""
    submission = outlook(services, spec, owner)
    if all(given.max_tokens is None for given in spec.inputs):
        submission = within_context(submission, spec.sampling.max_tokens)
    return checks.passed(submission, checks.messages)


def expand(services: Services, submission: Submission[ChatJobSpec]) -> Submission[ChatJobSpec]:
    """One sample for each choice of each prompt. Raises InvalidRequest: there are too many."""
    spec = submission.spec
    return submission.with_samples(partial(samples, spec), len(spec.inputs))


def samples(spec: ChatJobSpec) -> Iterator[NewSample]:
    """The samples of a chat."""
    for index, given in enumerate(spec.inputs):
        yield from choices(index, given.stored, spec.epochs)


def choices(index: int, stored: dict[str, Any], count: int) -> Iterator[NewSample]:
    """The samples of one stored input. They have the seeds s, s + 1, s + 2, ..."""
    for choice in range(count):
        yield NewSample(
            sample_index=index,
            condition="",
            epoch=choice,
            input=stored,
            seed=(stored["sampling"]["seed"] + choice) % 2**63,
        )


def spec_of(services: Services, request: CompletionBase, structure: ModelStructure | None) -> ChatJobSpec:
    """The job of a request, before the service's defaults.

    Args:
        structure: of the model, whose savepoints `store_activations` keeps; None if it is unknown.
    """
    for field, grammar in request.grammars.items():
        if problem := _problem_of(grammar):
            reason, *_ = problem.partition(": ")[2].splitlines()
            raise InvalidRequest(f"{field}: {reason[:500]}", param=field)
    seed = secrets.randbits(63) if request.seed is None else request.seed % 2**63
    inputs = request.inputs(seed=seed, chat_max_tokens=services.settings.chat_max_tokens)
    return ChatJobSpec(
        model=request.model,
        inputs=inputs,
        epochs=request.choices,
        sampling=inputs[0].sampling,
        capture=request.captures(() if structure is None else tuple(structure.savepoints)),
        interventions=request.interventions,
        tags=request.tags,
        expires_after=request.expires_after,
        metadata=getattr(request, "metadata", None) or {},
        deadline_seconds=services.settings.chat_timeout_seconds,
    )


@lru_cache(maxsize=64)
def _problem_of(grammar: str) -> str:
    """Complaint of llguidance, or "". The lines of a batch mostly share one schema."""
    return str(LLMatcher.validate_grammar(grammar))


def request_field(param: str | None) -> str | None:
    """The field of a request, by that of its job."""
    return param and re.sub(r"^(inputs\.\d+|sampling)\.", "", param)
