"""A model whose layers are shared by several ranks, as transformers' plan of its architecture says.

Each rank reads its own slices of the weights
(https://huggingface.co/docs/transformers/perf_infer_gpu_multi). Attention heads and the inner width of MLPs
are split; the residual stream, the norms and the logits are whole in all ranks.
"""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.distributed.configuration_utils import DistributedConfig

from actograph.contract.errors import ModelRefused

#: fields of a config that are numbers of heads
_HEADS = ("num_attention_heads", "num_key_value_heads")


def check(name: str, config: PretrainedConfig, ranks: int, device: torch.device) -> None:
    """Refuse a model that so many ranks cannot share.

    Raises:
        ModelRefused: there are fewer GPUs, transformers has no plan for it, or its heads cannot be divided.
    """
    if device.type == "cuda" and torch.cuda.device_count() < ranks:
        raise ModelRefused(
            f"{name}: {ranks} ranks need a GPU each, and there are {torch.cuda.device_count()} here; lower "
            "ACTOGRAPH_TENSOR_PARALLEL"
        )
    text = config.get_text_config()
    if not (getattr(text, "base_model_tp_plan", None) or getattr(config, "base_model_tp_plan", None)):
        raise ModelRefused(
            f"{name}: transformers has no plan by which ranks share a model of the kind {config.model_type}; "
            "set ACTOGRAPH_TENSOR_PARALLEL to 1, and load it with device_map auto to use several GPUs"
        )
    for field in _HEADS:
        heads = getattr(text, field, None)
        if isinstance(heads, int) and heads % ranks:
            raise ModelRefused(
                f"{name}: its {field} of {heads} cannot be divided among {ranks} ranks; set "
                f"ACTOGRAPH_TENSOR_PARALLEL to a divisor of {heads}"
            )


def load(source: str, ranks: int, **options: Any) -> PreTrainedModel:
    """This rank's share of a model; all ranks of the group call this."""
    hf: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        source,
        trust_remote_code=False,
        distributed_config=DistributedConfig(tp_size=ranks, tp_plan="auto"),
        **options,
    )
    return hf
