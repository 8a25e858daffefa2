"""The one model that this worker holds."""

import gc
import logging
from collections.abc import Callable

import torch

from actograph.contract import model_names
from actograph.contract.errors import UnknownModel
from actograph.contract.estimate import batch_cap
from actograph.contract.resources import ModelStructure
from actograph.settings import Settings
from worker.engine.generate import Engine
from worker.engine.memory import capacity, kv_bytes_per_token, memory_snapshot
from worker.engine.model import load_model

logger = logging.getLogger(__name__)


class ModelHolder:
    """Loads models by their served names, one at a time: the old one goes before the new one comes."""

    def __init__(self, settings: Settings, on_loaded: Callable[[ModelStructure], None]) -> None:
        self._settings = settings
        self._on_loaded = on_loaded
        self._served = [
            model_names.parse(text) for text in (settings.model, *settings.allowed_models) if text
        ]
        self._engine: Engine | None = None
        self._resting: dict[str, int] = {}

    def engine_for(self, name: str) -> Engine:
        """The engine of the model that is served as `name`, loaded if it is not the one in hand.

        Raises:
            UnknownModel: this worker's settings do not name it.
            ModelRefused: it cannot be loaded.
        """
        if self._engine is not None and self._engine.structure.model == name:
            return self._engine
        model = next((m for m in self._served if m.name == name), None)
        if model is None:
            known = ", ".join(m.name for m in self._served)
            raise UnknownModel(f"model {name!r} is not served by this worker; it serves {known}")
        self.unload()
        settings = self._settings
        logger.info("loading model %s", name)
        loaded = load_model(
            model.source,
            dtype=settings.dtype,
            device=settings.device,
            revision=settings.revision,
            name=model.name,
        )
        engine = Engine(loaded)
        engine.structure = engine.structure.model_copy(
            update={"kv_bytes_per_token": kv_bytes_per_token(loaded)}
        )
        self._engine, self._resting = engine, memory_snapshot(loaded.device)
        self._on_loaded(self._engine.structure)
        logger.info("model %s is ready on %s", name, self._engine.structure.device)
        return self._engine

    @property
    def device(self) -> torch.device | None:
        """Where the model is; None before one is loaded."""
        return self._engine.model.device if self._engine is not None else None

    def memory(self) -> dict[str, int]:
        """For the heartbeat: what is used, and what a batch may use, by which plans are made."""
        device = self.device
        numbers = memory_snapshot(device)
        if device is not None:
            most = batch_cap(on_gpu=device.type == "cuda")
            numbers |= capacity(device, self._resting)
            numbers["host_buffer_bytes"] = self._settings.host_buffer_bytes
            numbers["batch_cap"] = min(most, self._settings.batch_size or most)
        return numbers

    def unload(self) -> None:
        self._engine = None
        gc.unfreeze()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
