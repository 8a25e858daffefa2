"""Logits processors of a checkpoint's generation config."""

import copy
from typing import Any

from transformers import LogitsProcessor

from worker.engine.model.loaded import LoadedModel


def of_one(model: LoadedModel, prompt_tokens: int, max_tokens: int) -> list[LogitsProcessor]:
    """transformers' own processors for one request; usually none.

    Sampling and stopping are left to us.
    """
    # on the host at first: a GPU would be waited for, and most checkpoints have none
    return _made(model, prompt_tokens, max_tokens, "cpu") and _made(
        model, prompt_tokens, max_tokens, str(model.device)
    )


def _made(model: LoadedModel, prompt_tokens: int, max_tokens: int, device: str) -> list[LogitsProcessor]:
    hf: Any = model.hf
    config = copy.deepcopy(hf.generation_config)
    config.update(
        do_sample=False,
        guidance_scale=None,  # it would run the model once more in each step, without the prompt
        max_length=prompt_tokens + max_tokens,
        eos_token_id=list(model.eos_token_ids) or None,
        pad_token_id=0,  # nothing is padded
    )
    hf._prepare_special_tokens(config, kwargs_has_attention_mask=True, device=device)
    return list(
        hf._get_logits_processor(config, input_ids_seq_length=prompt_tokens, device=device, model_kwargs={})
    )
