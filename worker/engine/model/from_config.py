"""Sizes of a model by its config alone, without its weights.

transformers builds the model on torch's meta device, where tensors have shapes and no memory. So the sizes
are those of the tensors that a load makes, for every architecture that transformers has. Ranks share it as
transformers' own plan says, in a group of which this process is the only real member.
"""

import inspect
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

from actograph.contract.errors import ModelRefused
from worker.engine.model import sharded
from worker.engine.model.kv_cache import kv_bytes_per_token
from worker.engine.model.loaded import LoadedModel

#: texts and tokens of each in a pass: as many tokens as a pass has at most, and as short texts as leave
#: attention's scores out, which packed passes never hold
_TEXTS, _TOKENS = 8, 64
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, kw_only=True)
class ConfigSizes:
    """Sizes of a model, or of the largest share of it that one of several ranks has.

    Attributes:
        num_parameters: of the whole model.
        weights_bytes: bytes of the parameters.
        token_bytes: keys and values of one token.
        forward_bytes: activations of a pass of `STEP_TOKENS` at its peak.
        row_bytes: a row of its widest module output, as it is kept and in float32.
        heads_width: queries of all heads of a token; `keys_width`: keys. None if it has no such heads.
    """

    architecture: str
    dtype: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    context_length: int
    num_parameters: int
    weights_bytes: int
    token_bytes: int
    forward_bytes: int
    row_bytes: int
    num_experts: int | None
    experts_per_token: int | None
    heads_width: int | None
    keys_width: int | None


def sizes_of(source: str, *, dtype: str = "auto", revision: str | None = None, ranks: int = 1) -> ConfigSizes:
    """Sizes of the model that a load of `source` makes.

    Args:
        source: folder or Hub id; only its config is read.
        dtype: `auto` is the checkpoint's own.
        ranks: processes that share the model.

    Raises:
        ModelRefused: the config cannot be read, or a size cannot be derived from it; with the reason.
    """
    config = _config(source, revision)
    text = config.get_text_config()
    own = str(config.dtype or "float32").removeprefix("torch.")
    chosen: torch.dtype = getattr(torch, own if dtype == "auto" else dtype)
    if ranks > 1:
        sharded.check(source, config, ranks, torch.device("cpu"))
    try:
        with torch.device("meta"):
            build: Any = AutoModelForCausalLM.from_config
            # the other implementations read their masks
            hf = build(config, dtype=chosen, attn_implementation="eager").eval()
    except Exception as error:
        raise ModelRefused(
            f"{source}: transformers cannot build a language model from its config ({_said(error)})"
        ) from error
    whole = sum(one.numel() for one in hf.parameters())
    tokenizer: Any = SimpleNamespace(model_max_length=0)
    model = LoadedModel(name=source, hf=hf, tokenizer=tokenizer)
    with _shared(hf, ranks):
        weights_bytes = sum(one.numel() * one.element_size() for one in map(_own, hf.parameters()))
        # torch's grouped products of experts have a meta kernel for bfloat16 alone
        hf.to(torch.bfloat16)
        times = chosen.itemsize / torch.bfloat16.itemsize
        try:
            token_bytes, (forward_bytes, widest) = kv_bytes_per_token(model), _forward(hf)
        except Exception as error:
            raise ModelRefused(
                f"{source}: {type(hf).__name__} does not run without numbers ({_said(error)}), so its keys "
                "and values cannot be sized by its config; load it on a worker, and `actograph estimate` "
                "without --card uses what was measured"
            ) from error
    if not token_bytes:
        raise ModelRefused(
            f"{source}: {type(hf).__name__} keeps no keys and values for each token, so its memory by "
            "length cannot be derived from its config; load it on a worker to measure it"
        )
    experts = next((getattr(text, name) for name in _EXPERTS if getattr(text, name, None)), None)
    heads, keys = _head_widths(text)
    return ConfigSizes(
        architecture=type(hf).__name__,
        dtype=str(chosen).removeprefix("torch."),
        num_layers=int(text.num_hidden_layers),
        hidden_size=int(text.hidden_size),
        vocab_size=int(text.vocab_size),
        context_length=model.context_length,
        num_parameters=whole,
        weights_bytes=weights_bytes,
        token_bytes=int(times * token_bytes),
        forward_bytes=int(times * forward_bytes),
        row_bytes=widest * (chosen.itemsize + 4),
        num_experts=experts,
        experts_per_token=getattr(text, "num_experts_per_tok", None) if experts else None,
        heads_width=heads,
        keys_width=keys,
    )


def _head_widths(config: Any) -> tuple[int | None, int | None]:
    """Numbers of all queries and of all keys of a token; None for latent attention (MLA)."""
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(heads, int) or getattr(config, "kv_lora_rank", None):
        return None, None
    width = getattr(config, "head_dim", None) or int(config.hidden_size) // heads
    return heads * width, (getattr(config, "num_key_value_heads", None) or heads) * width


def _config(source: str, revision: str | None) -> PretrainedConfig:
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(
            source, revision=revision, trust_remote_code=False
        )
    except Exception as error:  # huggingface_hub and transformers raise many kinds
        raise ModelRefused(
            f"{source}: its config.json cannot be read ({_said(error)}). Give a folder with config.json, or "
            "a Hub id that this machine can reach"
        ) from error
    if config.is_encoder_decoder:
        raise ModelRefused(f"{source}: an encoder-decoder model; only decoder-only models are served")
    if getattr(config, "quantization_config", None) is not None:
        raise ModelRefused(
            f"{source}: its weights are quantised, and how many bytes they take is not in its config; load "
            "it on a worker to measure it"
        )
    return config


@contextmanager
def _shared(hf: Any, ranks: int) -> Iterator[None]:
    """Share a model on the meta device among ranks, of which this process is the first."""
    if ranks == 1:
        yield
        return
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        _share(hf, ranks)
        yield
    finally:
        dist.destroy_process_group()


def _share(hf: Any, ranks: int) -> None:
    """Keep this rank's parts of the weights. Raises ModelRefused."""
    try:
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
        head, embedding = hf.get_output_embeddings(), hf.get_input_embeddings()
        if head.weight is embedding.weight:  # a load ties them after both are shared
            head.weight = torch.nn.Parameter(torch.empty_like(head.weight))
        plan, *_ = hf._resolve_parallel_plans(DistributedConfig(tp_size=ranks, tp_plan="auto"))
        apply_tensor_parallelism(hf, mesh, plan)
        hf.tie_weights()
    except Exception as error:
        raise ModelRefused(
            f"{hf.config.name_or_path}: transformers cannot share {type(hf).__name__} among {ranks} ranks "
            f"({_said(error)}); estimate it with --tensor-parallel 1"
        ) from error


class _Alive(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of new tensors that are alive.

    Args:
        old: tensors that do not count.

    Attributes:
        peak: most of them.
    """

    def __init__(self, old: Iterable[torch.Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live, self.peak = 0, 0
        self._known = {one.untyped_storage()._cdata: 0 for one in old}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **kwargs or {})
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and tensor.is_meta:
                self._hold(tensor.untyped_storage())
        return made

    def _hold(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known[key] = storage.nbytes()
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self.live -= self._known.pop(key, 0)


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _forward(hf: Any) -> tuple[int, int]:
    """Activations of a pass at its peak, and the width of its widest output of a row for each token."""
    widths = [0]

    def note(_module: Any, _given: Any, output: Any) -> None:
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.shape[:2] == (_TEXTS, _TOKENS):
                widths.append(tensor[0, 0].numel())

    hooks = [module.register_forward_hook(note) for module in hf.modules()]
    ids = torch.zeros(_TEXTS, _TOKENS, dtype=torch.long, device="meta")
    mask = torch.ones_like(ids)
    options: dict[str, Any] = {"attention_mask": mask, "use_cache": False}
    if "logits_to_keep" in inspect.signature(hf.forward).parameters:
        options["logits_to_keep"] = 1
    alive = _Alive([*map(_own, hf.parameters()), *hf.buffers(), mask, ids])
    with torch.inference_mode(), alive:
        hf(input_ids=ids, **options)
    for hook in hooks:
        hook.remove()
    return alive.peak, max(widths)


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0]}"
