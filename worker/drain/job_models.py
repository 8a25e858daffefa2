"""The engine for a job: its model with the options in force, or the model that the job is pinned to.

`model_holder` loads models. This file decides by the index which one to load, and notes the result there.
"""

import logging
from collections.abc import Callable
from typing import Any

from sqlalchemy.orm import Session

from actograph.contract.errors import ActographError, ModelChanged, ModelRefused
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.models import ModelStructure, PinnedModel
from storage.index import events
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import model_loads, workers
from storage.queue.claim import HeldModel
from storage.tables.models import JobRow
from worker.drain.model_holder import ModelHolder, is_same, memory_used
from worker.engine.client import EngineClient

logger = logging.getLogger(__name__)


class HeldElsewhere(Exception):
    """This worker cannot load the model that a job is pinned to; another worker holds it."""


class NotHeld(Exception):
    """The job needs a model that is not loaded, and none may be loaded now."""


class JobModels:
    """Changes the held model for a job, or if a client requests a load."""

    def __init__(self, models: ModelHolder, database: Database, worker_id: str) -> None:
        self._models = models
        self._database = database
        self._worker_id = worker_id

    def before_unload(self, act: Callable[[], None]) -> None:
        """Let go of the model before it is unloaded."""
        self._models.before_unload = act

    @property
    def held(self) -> HeldModel | None:
        """The held model and its identity; None before the first load and after a refused one."""
        engine = self._models.engine
        if engine is None:
            return None
        identity = engine.structure.identity
        return HeldModel(engine.structure.model, identity.sha256 if identity else None)

    @property
    def name(self) -> str | None:
        """The held model's name."""
        return self.held.model if self.held else None

    def engine_of_job(self, job: JobRow, *, load: bool = True) -> tuple[EngineClient, PinnedModel | None]:
        """The engine that a job is pinned to, and the pin.

        A job without a pin is pinned to the model with the options in force. The pin stays None if the engine
        has no identity.

        Args:
            load: False while samples run: the model must not be unloaded.

        Raises:
            ActographError: as `ModelHolder.engine_for` and `engine_as`, or the model does not suit the job.
            HeldElsewhere: only another worker can run the job.
            NotHeld: the job needs a load.
        """
        loads = self._models.loads
        try:
            return self._engine_of_job(job, load=load)
        finally:
            if self._models.loads > loads:
                with self._database.write() as session:
                    self._note_load(session, job)

    def _engine_of_job(self, job: JobRow, *, load: bool) -> tuple[EngineClient, PinnedModel | None]:
        pinned = jobs.pin_of(job)
        if pinned is None:
            if not load and not self._models.holds(job.model):
                raise NotHeld
            engine = self._models.engine_for(job.model)
            pinned = jobs.pin_to(engine.structure, job.spec["engine"])
            if pinned is None:
                return engine, None
            with self._database.write() as session:
                # the first of two workers pins the job; the second one loads the model as pinned
                pinned = jobs.pin(session, job.id, pinned)
        if not load and self.held != HeldModel(job.model, pinned.identity.sha256):
            raise NotHeld
        return self._pinned_engine(job, pinned), pinned

    def _note_load(self, session: Session, job: JobRow) -> None:
        """Log in a job that its model was loaded for it."""
        engine = self._models.engine
        if engine is not None and jobs.lock_all(session, [job.id]):
            used = memory_used(engine, "load")
            structure = engine.structure
            data: dict[str, Any] = {"worker_id": self._worker_id, "model": structure.model, "memory": used}
            if structure.quantization is not None:
                data |= {"quantization": structure.quantization, "unverified": structure.unverified}
            events.append(session, job.id, "model.loaded", data)

    def _pinned_engine(self, job: JobRow, pinned: PinnedModel) -> EngineClient:
        identity = pinned.identity
        if self.held == HeldModel(job.model, identity.sha256):
            return self._as_pinned(pinned)
        with self._database.read() as session:
            current = workers.structure(session, job.model)
        if current is not None and is_same(current.identity, identity):
            engine = self._models.engine_for(job.model)
            if is_same(engine.structure.identity, identity):
                return engine
        engine = self._as_pinned(pinned)
        differences = ""
        if current is not None and current.identity is not None:
            differences = current.identity.differences(identity)
        with self._database.write() as session:
            jobs.note_reload(session, job.id, pinned, differences)
        logger.info("model %s was loaded as pinned by job %s: %s", job.model, job.id, differences)
        return engine

    def _as_pinned(self, pinned: PinnedModel) -> EngineClient:
        try:
            return self._models.engine_as(pinned.identity)
        except (ModelChanged, ModelRefused):
            with self._database.read() as session:
                if workers.another_holds(session, self._worker_id, pinned):
                    raise HeldElsewhere from None
            raise

    def load_as_asked(self, job: JobRow) -> None:
        """Run a job of kind `load`; if its model is refused, go on with the former one."""
        previous = self.name
        refused: ActographError | None = None
        structure: ModelStructure | None = None
        try:
            structure = self._models.load(job.model, ModelLoadOptions.model_validate(job.spec)).structure
        except ActographError as error:
            refused = error
        with self._database.write() as session:
            if structure is not None:
                self._note_load(session, job)
                model_loads.complete(session, job.id, structure)
            elif refused is not None:
                logger.warning("model %s is refused: %s", job.model, refused)
                jobs.fail(session, job.id, refused)
        if refused is not None and previous is not None:
            self._load_again(previous)

    def _load_again(self, model: str) -> None:
        try:
            self._models.engine_for(model)
        except ActographError as error:
            logger.error("the former model %s cannot be loaded again: %s", model, error)
