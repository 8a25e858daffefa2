"""A batch as transformers' `generate` takes it."""

from collections.abc import Sequence
from typing import Any

from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteriaList

from actograph.contract.specs import SamplingSpec
from worker.engine.logprobs import AfterChoice, LogprobRecorder
from worker.engine.model import LoadedModel
from worker.engine.padding import left_padded
from worker.engine.penalties import Penalties, changes_logits
from worker.engine.requests import GenerationRequest
from worker.engine.sampling import GumbelSampler
from worker.engine.stopping import RowTracker


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
        # a chunked prefill or guessed tokens would make a step something else than one token
        "prefill_chunk_size": None,
        "prompt_lookup_num_tokens": None,
        # whatever the checkpoint's generation config says
        "num_return_sequences": 1,
        "return_dict_in_generate": False,
        "output_hidden_states": False,
        "output_attentions": False,
        "eos_token_id": list(model.eos_token_ids) or None,
        "pad_token_id": model.pad_token_id,
        "stopping_criteria": StoppingCriteriaList(
            [tracker] if logprobs is None else [AfterChoice(logprobs), tracker]
        ),
        "streamer": None,  # nnsight's own would copy every token to the host once more
    }
    processors: list[LogitsProcessor] = [] if logprobs is None else [logprobs]
    if changes_logits(sampling):
        processors.append(Penalties(sampling, ids.shape[1], device))
    if sampling.temperature > 0:
        processors.append(GumbelSampler(sampling, [r.seed for r in requests], ids.shape[1], device))
    if processors:
        inputs["logits_processor"] = LogitsProcessorList(processors)
    return inputs
