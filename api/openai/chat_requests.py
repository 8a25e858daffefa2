"""Turn a request in OpenAI's form into a chat job, and submit it."""

import secrets
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from llguidance import LLMatcher

from actograph.contract import json_grammar
from actograph.contract.chat_job import ChatInput, ChatJobSpec
from actograph.contract.errors import ActographError, InvalidRequest
from actograph.contract.models import ModelStructure
from actograph.contract.openai import ChatCompletionRequest, CompletionBase, CompletionRequest
from api import submit
from api.dependencies import Services
from storage import samples
from storage.tables.models import JobRow, SampleRow

#: OpenAI's own default for `/v1/completions`
COMPLETION_MAX_TOKENS = 16


def job_spec(request: CompletionBase, services: Services, structure: ModelStructure | None) -> ChatJobSpec:
    """Build the job of a request to one of OpenAI's routes.

    Args:
        structure: of the model, whose savepoints `store_activations` keeps; None if it is unknown.
    """
    if isinstance(request, ChatCompletionRequest):
        inputs, metadata = [_conversation(request, services)], request.metadata or {}
    else:
        assert isinstance(request, CompletionRequest)
        inputs, metadata = _texts(request), {}
    seed = secrets.randbits(63) if request.seed is None else request.seed % 2**63
    # a job without generation needs a valid number too
    most = max(1, inputs[0].most_tokens)
    return ChatJobSpec(
        model=request.model,
        inputs=inputs,
        epochs=request.choices,
        sampling=request.sampling(max_tokens=most, seed=seed),
        capture=request.captures(() if structure is None else tuple(structure.savepoints)),
        interventions=request.interventions,
        tags=request.tags,
        expires_after=request.expires_after,
        metadata=metadata,
        deadline_seconds=services.settings.chat_timeout_seconds,
    )


def _conversation(request: ChatCompletionRequest, services: Services) -> ChatInput:
    if request.must_call or request.strict_tools:
        only = None if request.must_call else request.strict_tools
        _check(json_grammar.of_call(json_grammar.arguments_of(request.offered_tools, only), ""), "tools")
    return ChatInput(
        messages=[message.for_template() for message in request.messages],
        tools=request.offered_tools or None,
        must_call=request.must_call,
        call_name=request.call_name,
        strict_tools=request.strict_tools,
        one_call=request.one_call,
        grammar=_grammar(request),
        continues=request.continue_final_message,
        enable_thinking=request.thinks,
        template_variables=request.template_variables,
        max_tokens=request.max_completion_tokens or request.max_tokens,
        default_max_tokens=services.settings.chat_max_tokens,
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        # tool calls are sent whole
        live=bool(request.stream)
        and not (request.logprobs or request.must_call or request.continue_final_message),
        sample=request.sample,
    )


def _grammar(request: CompletionBase) -> str | None:
    """Grammar of the answer. Raises InvalidRequest if text cannot be constrained by it."""
    if (grammar := request.grammar) is not None:
        _check(grammar, "structured_outputs" if request.structured_outputs else "response_format")
    return grammar


def _check(grammar: str, param: str) -> None:
    """Raises InvalidRequest for a JSON schema that text cannot be constrained by."""
    if problem := _problem_of(grammar):
        reason, *_ = problem.partition(": ")[2].splitlines()
        raise InvalidRequest(f"{param}: {reason[:500]}", param=param)


@lru_cache(maxsize=64)
def _problem_of(grammar: str) -> str:
    """Complaint of llguidance, or "". The lines of a batch mostly share one schema."""
    return str(LLMatcher.validate_grammar(grammar))


def _texts(request: CompletionRequest) -> list[ChatInput]:
    shared: dict[str, Any] = {
        "top_logprobs": request.logprobs,
        "max_tokens": request.max_tokens,
        "default_max_tokens": COMPLETION_MAX_TOKENS,
        "echo": bool(request.echo),
        "grammar": _grammar(request),
        "live": bool(request.stream) and request.logprobs is None and not request.echo,
        "sample": request.sample,
    }
    return [
        ChatInput(**{"prompt" if isinstance(prompt, str) else "prompt_token_ids": prompt}, **shared)
        for prompt in request.prompts
    ]


def submit_chat(
    services: Services, request: CompletionBase, owner: str
) -> tuple[JobRow, Sequence[SampleRow]]:
    """Check the job of a request, insert it with its samples and wake a worker.

    Raises:
        ServiceUnavailable: no live worker can serve the model, or the queue is paused. The client should not
            wait for an unknown time.
        InvalidRequest: `param` is a field of the request.
    """
    model, structure = services.models.find(request.model), None
    if request.store_activations and model is not None:
        with services.database.read() as session:
            structure = services.structures.find(session, model)
    try:
        row = submit.submit(services, job_spec(request, services, structure), owner, starts_now=True)
    except ActographError as error:
        # fields of a job's sampling are fields of the request
        error.param = error.param and error.param.removeprefix("sampling.")
        raise
    with services.database.read() as session:
        return row, samples.find(session, row.id, limit=row.total or 1)[0]
