"""What is checked of requests before anything is run."""

from collections.abc import Callable, Sequence

from actograph.contract.errors import ContextLengthExceeded, InvalidRequest
from actograph.contract.interventions import check_width
from actograph.contract.resources import ModelStructure
from worker.engine.requests import GenerationRequest, RowSink


def check_requests(
    structure: ModelStructure,
    width_of: Callable[[str], int],
    requests: Sequence[GenerationRequest],
    *,
    max_tokens: int,
    hooks: Sequence[str],
    sink: RowSink | None,
) -> None:
    """Refuse what the model cannot run.

    Args:
        max_tokens: 0 where texts are only read.

    Raises:
        InvalidRequest, ContextLengthExceeded, UnknownHook: of the first request at fault.
        ValueError: hooks without a sink.
    """
    if hooks and sink is None:
        raise ValueError("hooks need a sink")
    context = structure.context_length
    for request in requests:
        prompt, most = len(request.prompt_ids), request.max_tokens or max_tokens
        if not prompt:
            raise InvalidRequest(f"{request.key}: the prompt has no tokens", param="prompt")
        if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= structure.vocab_size:
            raise InvalidRequest(
                f"{request.key}: token ids must be from 0 to {structure.vocab_size - 1}", param="prompt"
            )
        if not max_tokens and prompt > context:
            raise ContextLengthExceeded(
                f"{request.key}: the text has {prompt} tokens; the model's context is {context}",
                param="prompt",
            )
        if prompt + most > context:
            raise ContextLengthExceeded(
                f"{request.key}: prompt ({prompt} tokens) and max_tokens ({most}) need "
                f"{prompt + most} tokens; the model's context is {context}",
                param="max_tokens",
            )
        for edit in request.edits:
            if edit.vector is not None:
                check_width(edit.hook, len(edit.vector), width_of(edit.hook), "interventions")
