"""Load a model from a folder or the Hub, and wrap it for nnsight."""

import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Literal, NamedTuple

import nnsight
import torch
from nnsight.schema.config import CONFIG
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from actograph.contract.errors import ModelRefused
from actograph.contract.model_loads import DeviceKey, DeviceMap
from worker.engine.model import adapters, checkpoint_check, placement, quantized, sharded, weight_files
from worker.engine.model.adapters import Adapter
from worker.engine.model.devices import resolve_device
from worker.engine.model.handoffs import Handoffs, restore
from worker.engine.model.loaded import LoadedModel
from worker.engine.model.quantized import Quantization

# nnsight would read `-v` on our command line as its debug switch
CONFIG.APP.DEBUG = False

LoadDtype = Literal["auto", "float32", "float16", "bfloat16"]


def load_model(
    source: str,
    *,
    dtype: LoadDtype = "auto",
    device: str = "auto",
    device_map: DeviceMap | None = None,
    max_memory: Mapping[DeviceKey, int] | None = None,
    revision: str | None = None,
    attn_implementation: str | None = None,
    name: str | None = None,
    ranks: int = 1,
    adapter: str | None = None,
    adapter_revision: str | None = None,
) -> LoadedModel:
    """Load a model once, from a folder or the Hub. Code from a repository is never run.

    Args:
        source: folder or Hub id.
        dtype: `auto` is the checkpoint's own.
        device: `auto`, `cpu`, `cuda` or `cuda:<n>`.
        device_map: instead of `device`: accelerate's name of a strategy, or module path -> device.
        max_memory: GPU number or `cpu` -> bytes that a strategy may fill there.
        ranks: processes that share the model, all of which call this, see `sharded`.
        adapter: folder or Hub id of a LoRA to merge into the weights.

    Raises:
        ModelRefused: it cannot be loaded; the message says what to do.
    """
    name = name or source
    _check_ways(name, ranks=ranks, device=device, device_map=device_map, adapter=adapter)
    target = resolve_device(device if device_map is None else "auto")
    options: dict[str, Any] = {"dtype": dtype if dtype == "auto" else getattr(torch, dtype)}
    if attn_implementation is not None:
        options["attn_implementation"] = attn_implementation
    config, tokenizer = _checked(source, revision, name)
    checkpoint = _ToLoad(name, source, revision, tokenizer, options)
    packed = quantized.quantization_of(config, target)
    if packed is not None:
        _check_quantized(name, packed, ranks=ranks, device_map=device_map, adapter=adapter)
    if ranks > 1:
        sharded.check(name, config, ranks, target)
        return _sharded(checkpoint, ranks)
    if device_map is not None:
        placement.check_devices(device_map)
        if placement.needs_spreading(config, device_map, options["dtype"], max_memory):
            return _spread(checkpoint, device_map, _ordered(max_memory))
    if adapter is not None:
        model = _adapted(checkpoint, adapters.find(name, adapter, adapter_revision, base=source), target)
    elif packed is not None:
        model = _quantized(checkpoint, packed, target)
    else:
        model = _plain(checkpoint, target)
    if target.type == "cpu":
        _leave_file(model.hf)
    return model


class _ToLoad(NamedTuple):
    """What is loaded.

    Attributes:
        options: of transformers' `from_pretrained`: the dtype, and perhaps the attention.
    """

    name: str
    source: str
    revision: str | None
    tokenizer: PreTrainedTokenizerBase
    options: dict[str, Any]


def _check_ways(
    name: str, *, ranks: int, device: str, device_map: DeviceMap | None, adapter: str | None
) -> None:
    """Raise ModelRefused if two ways of loading exclude each other."""
    if ranks > 1 and (device_map is not None or device != "auto"):
        raise ModelRefused(
            f"{name}: {ranks} ranks share it, each on the GPU of its number: it takes neither a device nor "
            "a device_map; leave them out, or set ACTOGRAPH_TENSOR_PARALLEL to 1"
        )
    if adapter is not None and (ranks > 1 or device_map is not None):
        way = f"{ranks} ranks share it" if ranks > 1 else "device_map spreads it over devices"
        raise ModelRefused(
            f"{name}: an adapter is merged on one device, and {way}. Merge both with peft's "
            "merge_and_unload, save the result, and serve that folder"
        )


def _check_quantized(
    name: str, packed: Quantization, *, ranks: int, device_map: DeviceMap | None, adapter: str | None
) -> None:
    """Raise ModelRefused if a quantised checkpoint is to be loaded in a way that is not verified."""
    if ranks > 1:
        way = f"{ranks} ranks share it"
    elif adapter is not None:
        way = "an adapter is to be merged into it"
    elif device_map is not None:
        way = "device_map spreads it over devices"
    else:
        return
    raise ModelRefused(
        f"{name}: its weights are quantised by {packed.method}, and {way}, which is not verified. "
        "Serve it on one device and without an adapter, or a checkpoint that is not quantised"
    )


def _plain(checkpoint: _ToLoad, target: torch.device) -> LoadedModel:
    with _refusing(checkpoint, _too_large(target)):
        lm = nnsight.TransformersModel(
            checkpoint.source,
            task="text-generation",
            dispatch=True,
            tokenizer=checkpoint.tokenizer,
            revision=checkpoint.revision,
            device=str(target),
            **checkpoint.options,
        )
    return _prepared(lm, checkpoint.tokenizer, checkpoint.name, checkpoint.revision)


def _adapted(checkpoint: _ToLoad, lora: Adapter, target: torch.device) -> LoadedModel:
    """Load a model and merge an adapter into it."""
    adapters.require_peft()
    with _refusing(checkpoint, _too_large(target)):
        own: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint.source, revision=checkpoint.revision, trust_remote_code=False, **checkpoint.options
        )
        hf = adapters.merge(own.to(target).eval(), checkpoint.tokenizer, lora, checkpoint.name)
    return replace(_wrapped(checkpoint, hf), adapter=lora)


def _quantized(checkpoint: _ToLoad, packed: Quantization, target: torch.device) -> LoadedModel:
    options = checkpoint.options | {"revision": checkpoint.revision}
    with _refusing(checkpoint, _too_large(target)):
        hf = quantized.load(checkpoint.name, checkpoint.source, packed, target, options)
    return replace(_wrapped(checkpoint, hf), quantization=packed)


def _sharded(checkpoint: _ToLoad, ranks: int) -> LoadedModel:
    """Load this rank's part of a model."""
    name, source, revision, tokenizer, options = checkpoint
    with _refusing(checkpoint, f"do not fit on {ranks} devices; take a smaller dtype or model"):
        hf = sharded.load(source, ranks, revision=revision, **options)
        return _ready(LoadedModel(name=name, hf=hf, tokenizer=tokenizer, revision=revision))


def _too_large(target: torch.device) -> str:
    return f"do not fit on {target}; take a smaller dtype or model, or free the GPU"


def _checked(source: str, revision: str | None, name: str) -> tuple[Any, PreTrainedTokenizerBase]:
    """Config and tokenizer of a checkpoint whose weights fit its config.

    Raises:
        ModelRefused: the checkpoint cannot be read, contradicts itself, or is of an unsupported kind.
    """
    file = "config.json"
    try:
        checkpoint_check.check_files(name, source, revision)
        checkpoint_check.check_numbers(name, source, revision)
        config = AutoConfig.from_pretrained(source, revision=revision, trust_remote_code=False)
        file = "tokenizer.json or another file of the tokenizer"
        tokenizer = AutoTokenizer.from_pretrained(source, revision=revision, trust_remote_code=False)
    except ModelRefused:
        raise
    except Exception as error:  # Rust's tokenizers raise no narrower class
        if "custom code" in str(error):
            raise ModelRefused(
                f"{name}: {source!r} contains Python code, and code from a repository is never run; "
                "take a version of the model that transformers supports without it"
            ) from error
        raise ModelRefused(
            f"{name}: {file} cannot be read from {source!r} ({_first_line(error)}). "
            "Give a folder with config.json and tokenizer files, or a Hub id that this machine can reach."
        ) from error
    checkpoint_check.check_tokenizer(name, source, tokenizer)
    if getattr(config, "is_encoder_decoder", False):
        raise ModelRefused(f"{name}: an encoder-decoder model; only decoder-only models are served")
    with _refusing(_ToLoad(name, source, revision, tokenizer, {}), "do not fit"):
        checkpoint_check.check_weights(name, source, config, revision)
    return config, tokenizer


@contextmanager
def _refusing(checkpoint: _ToLoad, too_large: str) -> Iterator[None]:
    """Turn errors of loading weights into ModelRefused.

    Args:
        too_large: message if memory runs out, after "the weights".
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise ModelRefused(f"{checkpoint.name}: the weights {too_large}") from error
    except (OSError, EOFError, ValueError, KeyError, ImportError, RuntimeError, UnpicklingError) as error:
        file = weight_files.first(checkpoint.source, checkpoint.revision) or checkpoint.source
        raise ModelRefused(
            f"{checkpoint.name}: the weights cannot be loaded from {file} ({_first_line(error)})"
        ) from error


def _leave_file(hf: PreTrainedModel) -> None:
    """Copy the weights out of the file, which transformers maps into memory on a CPU.

    Overwriting a mapped file would change the numbers of a running job, or kill the process.
    """
    for tensor in [*hf.parameters(), *hf.buffers()]:
        tensor.data = tensor.data.clone()


def _ordered(max_memory: Mapping[DeviceKey, int] | None) -> dict[DeviceKey, int] | None:
    """GPUs in order, then main memory: accelerate fills devices in this order."""
    if max_memory is None:
        return None
    return dict(sorted(max_memory.items(), key=lambda item: (item[0] == "cpu", str(item[0]).zfill(3))))


def _spread(
    checkpoint: _ToLoad, device_map: DeviceMap, max_memory: dict[DeviceKey, int] | None
) -> LoadedModel:
    """Load a model whose modules accelerate places on several devices."""
    folder, options = None, checkpoint.options | {"max_memory": max_memory}
    if isinstance(device_map, dict) and "disk" in device_map.values():
        folder = Path(tempfile.mkdtemp(prefix="actograph-offload-"))
        options["offload_folder"] = str(folder)
    hf: Any = None
    too_large = (
        "do not fit as device_map places them; take a smaller dtype or model, or place less on the GPUs"
    )
    try:
        with _refusing(checkpoint, too_large):
            hf = AutoModelForCausalLM.from_pretrained(
                checkpoint.source,
                revision=checkpoint.revision,
                trust_remote_code=False,
                device_map=device_map,
                **options,
            )
            placement.refuse_what_cannot_work(checkpoint.name, hf, device_map)
            # transformers' pipeline expects a device that can hold tensors first in the map
            hf.hf_device_map = dict(sorted(hf.hf_device_map.items(), key=lambda item: item[1] == "disk"))
    finally:
        if folder is not None and hf is None:
            shutil.rmtree(folder, ignore_errors=True)
        elif folder is not None:
            weakref.finalize(hf, shutil.rmtree, folder, ignore_errors=True)
    return _wrapped(checkpoint, hf)


def _wrapped(checkpoint: _ToLoad, hf: PreTrainedModel) -> LoadedModel:
    """A model of transformers with nnsight's wrapper around it."""
    tokenizer = checkpoint.tokenizer
    lm = nnsight.TransformersModel(hf, task="text-generation", dispatch=True, tokenizer=tokenizer)
    return _prepared(lm, tokenizer, checkpoint.name, checkpoint.revision)


def wrap_model(hf_model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, name: str) -> LoadedModel:
    """Wrap a model that is already in memory; its weights are shared, not copied."""
    restore(hf_model)
    lm = nnsight.TransformersModel(hf_model, task="text-generation", dispatch=True, tokenizer=tokenizer)
    return _prepared(lm, tokenizer, name, None)


def _prepared(lm: Any, tokenizer: PreTrainedTokenizerBase, name: str, revision: str | None) -> LoadedModel:
    return _ready(
        LoadedModel(
            name=name,
            hf=lm._module,
            tokenizer=tokenizer,
            lm=lm,
            handoffs=Handoffs(lm),
            revision=revision,
        )
    )


def _ready(model: LoadedModel) -> LoadedModel:
    if not model.hf.can_generate():
        raise ModelRefused(f"{model.name}: {type(model.hf).__name__} has no language-model head")
    module: torch.nn.Module = model.hf
    module.train(False)
    module.requires_grad_(False)
    model.tokenizer.padding_side = "left"
    if model.tokenizer.pad_token is None and model.eos_token_ids:
        model.tokenizer.pad_token_id = model.eos_token_ids[0]
    return model


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
