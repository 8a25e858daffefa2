"""Memory of attention for every pair of prompt tokens, from a model's config."""

from dataclasses import dataclass
from typing import Any

from actograph.plans import item_bytes
from worker.engine.model.loaded import LoadedModel

#: implementations that take lengths and build no matrix of pairs
_WITHOUT_MATRIX = ("flash_attention", "flex_attention")
#: softmax in float32: its input and its output
_SOFTMAX_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class PairBytes:
    """Bytes for each pair of prompt tokens of one sample; see `contract.batch_memory.attention_bytes`."""

    #: of a padded batch's mask
    mask: int
    #: of scores that are held as a whole
    scores: int = 0


def pair_bytes(model: LoadedModel) -> PairBytes:
    """Pair bytes of a loaded model.

    transformers builds one mask of truth values for each kind of layer. The kernels of SDPA convert one at a
    time to the model's dtype, on a GPU once more to align it. Eager attention has masks of numbers and holds
    the scores of all heads of a layer.
    """
    config: Any = model.hf.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    implementation = str(getattr(config, "_attn_implementation", None) or "sdpa")
    if not heads or implementation.startswith(_WITHOUT_MATRIX):
        return PairBytes(mask=0)
    item = item_bytes(str(model.hf.dtype).removeprefix("torch."))
    kinds = len(set(getattr(config, "layer_types", None) or ["full_attention"]))
    if implementation == "eager":
        return PairBytes(mask=0, scores=kinds * item + heads * (item + _SOFTMAX_BYTES))
    conversions = 2 if model.device.type == "cuda" else 1
    return PairBytes(mask=kinds + conversions * item)
