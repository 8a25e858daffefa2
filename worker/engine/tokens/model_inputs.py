"""Inputs of a batch: prompts of different lengths, padded, and options of transformers' `generate`."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from transformers import LogitsProcessorList, StoppingCriteriaList

from actograph.contract.specs import SamplingSpec
from worker.engine.model.loaded import LoadedModel
from worker.engine.requests import GenerationRequest
from worker.engine.tokens.checkpoint_processors import LEFT_TO_US, processors_of
from worker.engine.tokens.constraints import Constrained
from worker.engine.tokens.logprobs import AfterChoice, LogprobRecorder
from worker.engine.tokens.penalties import Penalties, changes_logits
from worker.engine.tokens.sampling import GumbelSampler
from worker.engine.tokens.stopping import RowTracker

#: options that a checkpoint's generation config may not set
_NOT_THE_CHECKPOINTS: dict[str, Any] = {
    # a step is one forward over one token: no chunked prefill, no guesses, no second pass without the prompt
    "prefill_chunk_size": None,
    "prompt_lookup_num_tokens": None,
    "assistant_early_exit": None,
    "use_mtp": False,
    "guidance_scale": None,
    "penalty_alpha": None,
    "dola_layers": None,
    # the request decides where a text ends
    "stop_strings": None,
    "max_time": None,
    "token_healing": False,
    "num_return_sequences": 1,
    # the memory plan counts the model's default cache
    "cache_implementation": None,
    "return_dict_in_generate": False,
    "output_hidden_states": False,
    "output_attentions": False,
    "output_scores": False,
    "output_logits": False,
}


def left_padded(
    model: LoadedModel, requests: Sequence[GenerationRequest]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [batch, longest] and their mask (1 for a token, 0 for padding), on the host."""
    longest = max(len(request.prompt_ids) for request in requests)
    ids = torch.full((len(requests), longest), model.pad_token_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, request in enumerate(requests):
        start = longest - len(request.prompt_ids)
        ids[row, start:] = torch.tensor(request.prompt_ids)
        mask[row, start:] = 1
    return ids, mask


def padded_inputs(model: LoadedModel, requests: Sequence[GenerationRequest]) -> dict[str, Any]:
    """Left-padded ids, their mask and positions; no cache is kept."""
    ids, mask = left_padded(model, requests)
    device = model.device
    inputs: dict[str, Any] = {
        "input_ids": ids.to(device),
        "attention_mask": mask.to(device),
        "use_cache": False,
    }
    if "position_ids" in inspect.signature(model.hf.forward).parameters:
        inputs["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0).to(device)
    return inputs


def generation_inputs(
    model: LoadedModel,
    requests: Sequence[GenerationRequest],
    sampling: SamplingSpec,
    tracker: RowTracker,
    logprobs: LogprobRecorder | None = None,
) -> dict[str, Any]:
    """Left-padded ids, their mask, and how to choose and stop."""
    ids, mask = left_padded(model, requests)
    device = model.device
    inputs: dict[str, Any] = {
        "input_ids": ids.to(device),
        "attention_mask": mask.to(device),
        "max_new_tokens": max(r.max_tokens or sampling.max_tokens for r in requests),
        "do_sample": False,
        "num_beams": 1,
        "use_cache": True,
        **_NOT_THE_CHECKPOINTS,
        **LEFT_TO_US,
        "eos_token_id": list(model.eos_token_ids) or None,
        "pad_token_id": model.pad_token_id,
        "stopping_criteria": StoppingCriteriaList(
            [tracker] if logprobs is None else [AfterChoice(logprobs), tracker]
        ),
        "streamer": None,  # nnsight's own would copy every token to the host once more
    }
    processors = processors_of(model, [len(r.prompt_ids) for r in requests])
    if logprobs is not None:
        processors.append(logprobs)
    if changes_logits(sampling):
        processors.append(Penalties(sampling, ids.shape[1], device))
    if any(request.constraint is not None for request in requests):
        processors.append(Constrained([request.constraint for request in requests], tracker))
    if sampling.temperature > 0:
        processors.append(GumbelSampler(sampling, [r.seed for r in requests], ids.shape[1], device))
    if processors:
        inputs["logits_processor"] = LogitsProcessorList(processors)
    return inputs
