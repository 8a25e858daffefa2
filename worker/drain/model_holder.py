"""The one model that this worker holds, in the engine's process."""

import logging
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Literal, Protocol

from actograph.contract.errors import DeviceLost, ModelChanged, ModelRefused, UnknownModel
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.models import ModelIdentity, ModelStructure, ServedModel, parse_served
from actograph.settings import Settings
from worker.engine.client import EngineClient, EngineProcess
from worker.engine.model import weight_files

logger = logging.getLogger(__name__)


#: times that the engine's process may end while it loads a model
MOST_ATTEMPTS = 3


class LoadingEngine(EngineClient, Protocol):
    """An engine that can load one model after the other."""

    def load(self, model: ServedModel, options: ModelLoadOptions) -> None: ...

    def close(self) -> None: ...


def _by_the_settings(_model: str) -> ModelLoadOptions:
    return ModelLoadOptions()


class ModelHolder:
    """Holds one model at a time: it unloads the old one before it loads the new one."""

    def __init__(
        self,
        settings: Settings,
        on_loaded: Callable[[ModelStructure], None],
        options_of: Callable[[str], ModelLoadOptions] = _by_the_settings,
        start: Callable[[Settings], LoadingEngine] = EngineProcess,
    ) -> None:
        """
        Args:
            options_of: returns the options in force for a model; if they change, it is loaded again.
            start: starts an engine's process.
        """
        self._start = start
        self._process: LoadingEngine | None = None
        self._settings = settings
        self._on_loaded = on_loaded
        self._options_of = options_of
        self._served = [parse_served(text) for text in (settings.model, *settings.allowed_models) if text]
        #: called before the model is unloaded; whoever has references to it lets go of them
        self.before_unload: Callable[[], None] = lambda: None
        #: the engine of the held model
        self.engine: EngineClient | None = None
        #: what it was loaded with
        self.options = ModelLoadOptions()
        #: models that were loaded so far
        self.loads = 0

    def engine_for(self, name: str) -> EngineClient:
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

    def engine_as(self, pinned: ModelIdentity) -> EngineClient:
        """The engine of exactly this model variant, loaded if another one is held.

        Raises:
            UnknownModel, ModelRefused: as `engine_for`.
            ModelChanged: its files were overwritten, or it loads as another model.
        """
        held = self.engine
        if held is not None and is_same(held.structure.identity, pinned):
            return held
        model = self._find(pinned.model)
        files = {"weights_sha256": weight_files.find(model.source, pinned.revision)}
        if model.adapter is not None:
            files["adapter_sha256"] = weight_files.find_adapter(model.adapter, pinned.adapter_revision)
        on_disk = {field: weight_files.fingerprint(found) for field, found in files.items() if found}
        if any(digest != getattr(pinned, field) for field, digest in on_disk.items()):
            raise _changed(pinned, pinned.model_copy(update=on_disk))
        options = self._options_of(pinned.model).model_copy(
            update={
                "dtype": pinned.dtype,
                "attn_implementation": pinned.attn_implementation,
                "revision": pinned.revision,
                "adapter_revision": pinned.adapter_revision,
                "savepoints": [],  # a pinned job has its own
            }
        )
        engine = self.load(pinned.model, options)
        found = engine.structure.identity
        if found is not None and not is_same(found, pinned):
            raise _changed(pinned, found)
        return engine

    def load(self, name: str, options: ModelLoadOptions) -> EngineClient:
        """Unload the held model, load and verify `name`, resolve its savepoints; errors as `engine_for`.

        After an error other than UnknownModel no model is held.
        """
        model = self._find(name)
        self.before_unload()
        self.engine = None
        logger.info("loading model %s", name)
        engine = self._load(model, options)
        self.engine, self.options = engine, options
        self.loads += 1
        self._on_loaded(engine.structure)
        logger.info("model %s is ready on %s", name, engine.structure.device)
        return engine

    def _find(self, name: str) -> ServedModel:
        model = next((m for m in self._served if m.name == name), None)
        if model is None:
            known = ", ".join(m.name for m in self._served)
            raise UnknownModel(f"model {name!r} is not served by this worker; it serves {known}")
        return model

    def _load(self, model: ServedModel, options: ModelLoadOptions) -> EngineClient:
        """Load a model in the engine's process; start another one if it ends meanwhile."""
        for attempt in range(1, MOST_ATTEMPTS + 1):
            if self._process is None:
                self._process = self._start(self._settings)
            try:
                self._process.load(model, options)
            except DeviceLost as error:
                logger.critical("%s: %s (attempt %d of %d)", model.name, error, attempt, MOST_ATTEMPTS)
                self._end_process()
                continue
            return self._process
        raise ModelRefused(
            f"{model.name}: the engine's process ended {MOST_ATTEMPTS} times while it loaded the model, most "
            "likely out of memory; use a smaller model or dtype"
        )

    def memory(self) -> dict[str, int]:
        """Memory in use, and memory that a run may use. The heartbeat sends it; the API plans with it."""
        process, engine = self._process, self.engine  # another thread may load a model meanwhile
        numbers = process_memory()
        for name, value in (process.memory() if process is not None else {}).items():
            numbers[name] = numbers.get(name, 0) + value
        if engine is not None:
            numbers["host_buffer_bytes"] = self._settings.host_buffer_bytes
            numbers["slots"] = engine.slots
        return numbers

    def lost(self) -> None:
        """The engine's process has ended: no model is held."""
        self.before_unload()
        self.engine = None
        self._end_process()

    def close(self) -> None:
        """End the engine's process."""
        self.engine = None
        self._end_process()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()


def memory_used(engine: EngineClient, what: Literal["load", "run"]) -> dict[str, int]:
    """Memory of the engine before, after and at the peak of its load or last run; empty if it is unknown."""
    numbers, names = engine.memory(), ("before_bytes", "after_bytes", "peak_bytes")
    return {name: numbers[f"{what}_{name}"] for name in names if f"{what}_{name}" in numbers}


def is_same(found: ModelIdentity | None, pinned: ModelIdentity) -> bool:
    """Whether a job pinned to `pinned` may run with the model `found`."""
    return found is not None and found.model == pinned.model and found.sha256 == pinned.sha256


def _changed(pinned: ModelIdentity, found: ModelIdentity) -> ModelChanged:
    return ModelChanged(
        f"the job is pinned to {pinned.model} with identity {pinned.sha256}; the model on disk now has "
        f"identity {found.sha256}: {pinned.differences(found)}. Put the former files back and retry the job, "
        "or submit it again to run all of it with the model as it is now"
    )


def process_memory() -> dict[str, int]:
    """Bytes of this process in use now and at the peak."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    rss = pages * os.sysconf("SC_PAGE_SIZE")
    # the kernel updates the peak late: it may be below the memory in use
    return {
        "rss_bytes": rss,
        "peak_rss_bytes": max(rss, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024),
    }
