"""Check of a request against the model, before anything runs."""

from actograph.contract.errors import ContextLengthExceeded, InvalidRequest
from actograph.contract.interventions import check_width
from worker.engine.locations import ModelHooks
from worker.engine.requests import GenerationRequest


def check_request(hooks: ModelHooks, request: GenerationRequest, max_tokens: int) -> None:
    """Refuse a request that the model cannot run.

    Args:
        max_tokens: the sampling's; 0 if texts are only read.

    Raises:
        InvalidRequest, ContextLengthExceeded, UnknownHook: the request is at fault.
    """
    context, vocabulary = hooks.structure.context_length, hooks.structure.vocab_size
    prompt, most = len(request.prompt_ids), request.max_tokens or max_tokens
    if not prompt:
        raise InvalidRequest(f"{request.key}: the prompt has no tokens", param="prompt")
    if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= vocabulary:
        raise InvalidRequest(f"{request.key}: token ids must be from 0 to {vocabulary - 1}", param="prompt")
    if not max_tokens and prompt > context:
        raise ContextLengthExceeded(
            f"{request.key}: the text has {prompt} tokens; the model's context is {context}", param="prompt"
        )
    if prompt + most > context:
        raise ContextLengthExceeded(
            f"{request.key}: prompt ({prompt} tokens) and max_tokens ({most}) need "
            f"{prompt + most} tokens; the model's context is {context}",
            param="max_tokens",
        )
    for edit in request.edits:
        if edit.vector is not None:
            check_width(edit.hook, len(edit.vector), hooks.width_of(edit.hook), "interventions")
