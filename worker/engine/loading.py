"""Loads a served model: weights, engine, identity, savepoints."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch

from actograph.contract.errors import ModelRefused
from actograph.contract.model_loads import ModelLoadOptions, resolve_savepoints, with_savepoints
from actograph.contract.models import ModelIdentity, ServedModel
from worker.engine.engine import Engine
from worker.engine.messages import RunOptions
from worker.engine.model import group, weight_files
from worker.engine.model.devices import load_devices
from worker.engine.model.kv_cache import kv_bytes_per_token
from worker.engine.model.load import LoadDtype, load_model
from worker.engine.model.loaded import LoadedModel
from worker.engine.model.memory import MemoryWatch
from worker.engine.model.placement import weights_by_device
from worker.engine.model.quantized import weights_bytes
from worker.engine.model.weight_files import Stamp
from worker.engine.packed.weights import pack
from worker.engine.repeatable import prove
from worker.text.chat_template import template_sha256
from worker.text.tokenizer import tokenizer_sha256

logger = logging.getLogger(__name__)


def load_engine(
    model: ServedModel,
    options: ModelLoadOptions,
    usual: RunOptions,
    *,
    dtype: LoadDtype = "auto",
    device: str = "auto",
    revision: str | None = None,
    ranks: int = 1,
) -> Engine:
    """Load and verify a model, and resolve its savepoints.

    Args:
        options: what a client asked for; they win over the settings that follow.
        usual: options of most runs.
        ranks: processes that share the model; all of them call this.

    Raises:
        ModelRefused: it cannot be loaded.
        UnknownHook: a savepoint refers to an unknown hook.
    """
    revision = options.revision or revision
    before = weight_files.stamps(
        [*weight_files.find(model.source, revision), *_adapter_files(model, options.adapter_revision)]
    )
    one_device = None if options.is_spread else cast(str | None, options.device_map)
    loaded = load_model(
        model.source,
        dtype=options.dtype or dtype,
        device=one_device or device,
        device_map=options.device_map if options.is_spread else None,
        max_memory=options.max_memory,
        revision=revision,
        attn_implementation=options.attn_implementation,
        name=model.name,
        ranks=ranks,
        adapter=model.adapter,
        adapter_revision=options.adapter_revision,
    )
    _check_weights(loaded, options)
    # before the engine verifies the model, so that it verifies packed weights
    logger.info("%s: %s", model.name, pack(loaded.hf))
    try:
        engine = Engine(loaded, usual)
    except ModelRefused as error:
        if loaded.quantization is None:
            raise
        method = loaded.quantization.method
        raise ModelRefused(
            f"{error.message}. Its weights are quantised by {method}; where activations are quantised too, "
            "their rounding differs from pass to pass. Take one with quantised weights alone"
        ) from error
    if ranks > 1 and engine.structure.engine == "traced":
        raise ModelRefused(
            f"{model.name}: several ranks cannot share it, since it is traced: "
            f"{engine.structure.engine_reason}; set ACTOGRAPH_TENSOR_PARALLEL to 1"
        )
    if usual.repeatable:
        prove(engine, usual)
    found = {
        "kv_bytes_per_token": kv_bytes_per_token(loaded),
        "identity": _identity(model, loaded, before, usual),
    }
    if loaded.quantization is not None:
        found |= {
            "quantization": loaded.quantization.method,
            "unverified": loaded.quantization.unverified,
            "weights_bytes": weights_bytes(loaded.hf),
        }
    engine.structure = with_savepoints(
        engine.structure.model_copy(update=found), resolve_savepoints(options, engine.structure)
    )
    return engine


def load_as_ordered(order: Mapping[str, Any]) -> Engine:
    """Load what a host's message says; all ranks do the same. Errors as `load_engine`."""
    model = ServedModel(**order["model"] | {"aliases": frozenset(order["model"]["aliases"])})
    if order["threads"] or order["ranks"] > 1:
        torch.set_num_threads(max(1, (order["threads"] or torch.get_num_threads()) // order["ranks"]))
    options = ModelLoadOptions.model_validate(order["options"])
    one_device = None if options.is_spread else cast(str | None, options.device_map)
    device = one_device or order["device"]
    watch = MemoryWatch(load_devices(device, is_spread=options.is_spread, ranks=order["ranks"]))
    try:
        engine = load_engine(
            model,
            options,
            usual_options(order),
            dtype=order["dtype"],
            device=order["device"],
            revision=order["revision"],
            ranks=order["ranks"],
        )
        engine.note_load(watch.end())
    finally:
        watch.close()
    return engine


def usual_options(order: Mapping[str, Any]) -> RunOptions:
    """Options of most runs of a model that a host wants."""
    return RunOptions(slots=order["slots"], cuda_graphs=order["cuda_graphs"], repeatable=order["repeatable"])


def _identity(
    model: ServedModel, loaded: LoadedModel, before: Mapping[Path, Stamp], usual: RunOptions
) -> ModelIdentity:
    """Identify a loaded model by its files.

    Args:
        before: stamps of the model's files before the load; empty if they were downloaded by it.

    Raises:
        ModelRefused: its files changed during the load, or there are no weight files.
    """
    commit = getattr(loaded.hf.config, "_commit_hash", None)
    files = weight_files.find(model.source, commit)
    if not files:
        raise ModelRefused(f"{model.name}: {model.source!r} has no weight files that can be fingerprinted")
    fingerprint = weight_files.fingerprint(files)
    adapter = loaded.adapter
    adapter_files = _adapter_files(model, adapter.revision if adapter else None)
    if before and before != weight_files.stamps([*files, *adapter_files]):
        raise ModelRefused(f"{model.name}: its files changed during the load; load it again")
    return ModelIdentity(
        model=model.name,
        source=model.source,
        revision=commit,
        weights_sha256=fingerprint,
        dtype=str(loaded.dtype).removeprefix("torch."),
        attn_implementation=getattr(loaded.text_config, "_attn_implementation", None),
        tokenizer_sha256=tokenizer_sha256(loaded.tokenizer),
        template_sha256=template_sha256(loaded.tokenizer),
        tensor_parallel=group.size(),
        repeatable=usual.repeatable,
        quantization=loaded.quantization.method if loaded.quantization else None,
        adapter=model.adapter,
        adapter_revision=adapter.revision if adapter else None,
        adapter_sha256=weight_files.fingerprint(adapter_files) if adapter else None,
    )


def _adapter_files(model: ServedModel, revision: str | None) -> list[Path]:
    return weight_files.find_adapter(model.adapter, revision) if model.adapter is not None else []


def _check_weights(loaded: LoadedModel, options: ModelLoadOptions) -> None:
    """Refuse weights that take more than `max_memory` allows on a device.

    Raises:
        ModelRefused: with both numbers.
    """
    allowed = options.max_memory or {}
    for device, weights in weights_by_device(loaded.hf).items():
        most = allowed.get(device) if device == "cpu" or isinstance(device, int) else None
        if most is not None and weights > most:
            raise ModelRefused(
                f"{loaded.name}: the weights take {weights:,} bytes on "
                f"{device if device == 'cpu' else f'cuda:{device}'}, max_memory allows {most:,}; "
                "use a smaller dtype, place less there, or allow more"
            )
