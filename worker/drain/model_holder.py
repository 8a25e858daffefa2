"""The one model in this worker's memory: loaded, identified, unloaded."""

import gc
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import torch

from actograph.contract.errors import ActographError, ModelChanged, ModelRefused, UnknownModel
from actograph.contract.model_loads import ModelLoadOptions, resolve_savepoints, with_savepoints
from actograph.contract.models import ModelIdentity, ModelStructure, ServedModel, parse_served
from actograph.plans import most_slots
from actograph.settings import Settings
from worker.engine.engine import Engine
from worker.engine.model import weight_files
from worker.engine.model.kv_cache import kv_bytes_per_token
from worker.engine.model.load import load_model
from worker.engine.model.loaded import LoadedModel
from worker.engine.model.memory import capacity, memory_snapshot
from worker.engine.model.placement import weights_by_device
from worker.engine.model.weight_files import Stamp
from worker.engine.packed.weights import pack
from worker.engine.runs import RunOptions
from worker.text import chat_template

logger = logging.getLogger(__name__)


def _by_the_settings(_model: str) -> ModelLoadOptions:
    return ModelLoadOptions()


class ModelHolder:
    """Holds one model at a time: it unloads the old one before it loads the new one."""

    def __init__(
        self,
        settings: Settings,
        on_loaded: Callable[[ModelStructure], None],
        options_of: Callable[[str], ModelLoadOptions] = _by_the_settings,
    ) -> None:
        """`options_of` returns the options in force for a model; if they change, it is loaded again."""
        self._settings = settings
        self._on_loaded = on_loaded
        self._options_of = options_of
        self._served = [parse_served(text) for text in (settings.model, *settings.allowed_models) if text]
        #: called before the model is unloaded; whoever has references to it lets go of them
        self.before_unload: Callable[[], None] = lambda: None
        #: the engine of the held model
        self.engine: Engine | None = None
        #: what it was loaded with
        self.options = ModelLoadOptions()
        self._resting: dict[str, int] = {}

    def engine_for(self, name: str) -> Engine:
        """The engine of the model served as `name`, loaded if another one is held.

        Raises:
            UnknownModel: this worker does not serve it; the held model stays.
            ModelRefused: it cannot be loaded.
            UnknownHook: a savepoint refers to an unknown hook.
        """
        if self.engine is not None and self.holds(name):
            return self.engine
        return self.load(name, self._options_of(name))

    def holds(self, name: str) -> bool:
        """Whether the model served as `name` is held, with the options in force."""
        held = self.engine
        return held is not None and held.structure.model == name and self._options_of(name) == self.options

    def engine_as(self, pinned: ModelIdentity) -> Engine:
        """The engine of exactly this model variant, loaded if another one is held.

        Raises:
            UnknownModel, ModelRefused: as `engine_for`.
            ModelChanged: its files were overwritten, or it loads as another model.
        """
        held = self.engine
        if held is not None and is_same(held.structure.identity, pinned):
            return held
        files = weight_files.find(self._find(pinned.model).source, pinned.revision)
        on_disk = weight_files.fingerprint(files) if files else pinned.weights_sha256
        if on_disk != pinned.weights_sha256:
            raise _changed(pinned, pinned.model_copy(update={"weights_sha256": on_disk}))
        options = self._options_of(pinned.model).model_copy(
            update={
                "dtype": pinned.dtype,
                "attn_implementation": pinned.attn_implementation,
                "revision": pinned.revision,
                "savepoints": [],  # a pinned job has its own
            }
        )
        engine = self.load(pinned.model, options)
        found = engine.structure.identity
        if found is not None and not is_same(found, pinned):
            raise _changed(pinned, found)
        return engine

    def load(self, name: str, options: ModelLoadOptions) -> Engine:
        """Unload the held model, load and verify `name`, resolve its savepoints; errors as `engine_for`.

        After an error other than UnknownModel no model is held.
        """
        model = self._find(name)
        self.unload()
        logger.info("loading model %s", name)
        try:
            self.engine = self._load(model, options)
            self.options, self._resting = options, memory_snapshot(self.engine.model.devices)
            self._on_loaded(self.engine.structure)
        except (ActographError, torch.AcceleratorError):
            self.unload()
            raise
        except Exception as error:
            self.unload()
            raise ModelRefused(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error
        logger.info("model %s is ready on %s", name, self.engine.structure.device)
        return self.engine

    def _find(self, name: str) -> ServedModel:
        model = next((m for m in self._served if m.name == name), None)
        if model is None:
            known = ", ".join(m.name for m in self._served)
            raise UnknownModel(f"model {name!r} is not served by this worker; it serves {known}")
        return model

    def _load(self, model: ServedModel, options: ModelLoadOptions) -> Engine:
        settings = self._settings
        revision = options.revision or settings.revision
        before = weight_files.stamps(weight_files.find(model.source, revision))
        one_device = None if options.is_spread else cast(str | None, options.device_map)
        loaded = load_model(
            model.source,
            dtype=options.dtype or settings.dtype,
            device=one_device or settings.device,
            device_map=options.device_map if options.is_spread else None,
            max_memory=options.max_memory,
            revision=revision,
            attn_implementation=options.attn_implementation,
            name=model.name,
        )
        _check_weights(loaded, options)
        # before the engine verifies the model, so that it verifies packed weights
        logger.info("%s: %s", model.name, pack(loaded.hf))
        engine = Engine(loaded, RunOptions(slots=settings.slots, cuda_graphs=settings.cuda_graphs))
        found = {
            "kv_bytes_per_token": kv_bytes_per_token(loaded),
            "identity": _identity(model, loaded, before),
        }
        engine.structure = with_savepoints(
            engine.structure.model_copy(update=found), resolve_savepoints(options, engine.structure)
        )
        return engine

    def memory(self) -> dict[str, int]:
        """Memory in use, and memory that a run may use. The heartbeat sends it; the API plans with it."""
        engine = self.engine  # another thread may load a model meanwhile
        numbers = memory_snapshot(engine.model.devices if engine is not None else ())
        if engine is not None:
            numbers |= capacity(engine.model.layer_devices, self._resting, engine.forwards.pass_bytes)
            numbers["host_buffer_bytes"] = self._settings.host_buffer_bytes
            on_gpu = engine.model.device.type == "cuda"
            numbers["slots"] = most_slots(on_gpu=on_gpu, most=self._settings.slots)
        return numbers

    def unload(self) -> None:
        self.before_unload()
        self.engine = None
        gc.unfreeze()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def is_same(found: ModelIdentity | None, pinned: ModelIdentity) -> bool:
    """Whether a job pinned to `pinned` may run with the model `found`."""
    return found is not None and found.model == pinned.model and found.sha256 == pinned.sha256


def _changed(pinned: ModelIdentity, found: ModelIdentity) -> ModelChanged:
    return ModelChanged(
        f"the job is pinned to {pinned.model} with identity {pinned.sha256}; the model on disk now has "
        f"identity {found.sha256}: {pinned.differences(found)}. Put the former files back and retry the job, "
        "or submit it again to run all of it with the model as it is now"
    )


def _identity(model: ServedModel, loaded: LoadedModel, before: Mapping[Path, Stamp]) -> ModelIdentity:
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
    if before and before != weight_files.stamps(files):
        raise ModelRefused(f"{model.name}: its files changed during the load; load it again")
    return ModelIdentity(
        model=model.name,
        source=model.source,
        revision=commit,
        weights_sha256=fingerprint,
        dtype=str(loaded.dtype).removeprefix("torch."),
        attn_implementation=getattr(loaded.text_config, "_attn_implementation", None),
        tokenizer_sha256=chat_template.tokenizer_sha256(loaded.tokenizer),
        template_sha256=chat_template.template_sha256(loaded.tokenizer),
    )


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
