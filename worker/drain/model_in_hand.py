"""The model that a drain works with: changed for a job of another model, or if a client asks for a load."""

import logging
import time

from actograph.contract.errors import ActographError, ModelChanged, ModelRefused, UnknownModel
from actograph.contract.models.model_identity import PinnedModel
from actograph.contract.models.model_loads import ModelLoadOptions
from storage.index.database import Database
from storage.queue import job_pins, model_loads, workers
from storage.tables.models import JobRow
from worker.drain.grouping import Held
from worker.drain.model_holder import ModelHolder, is_same
from worker.engine.engine import Engine

logger = logging.getLogger(__name__)


class HeldElsewhere(Exception):
    """This worker cannot load the model that a job is pinned to; another worker has it in memory."""


class ModelInHand:
    """`name` is the loaded model; None before the first load, and after a load that was refused."""

    def __init__(self, models: ModelHolder, database: Database, worker_id: str) -> None:
        self._models = models
        self._database = database
        self._worker_id = worker_id
        self.name: str | None = None
        self._identity_sha256: str | None = None
        #: `time.monotonic` of the last change
        self.changed_at = 0.0

    @property
    def held(self) -> Held | None:
        """The loaded model and its identity."""
        return None if self.name is None else Held(self.name, self._identity_sha256)

    def engine_for(self, model: str) -> Engine:
        """The engine of this model by the options in force, loaded if need be.

        Raises:
            ActographError: as `ModelHolder.engine_for`; unless UnknownModel, the old model is gone too.
        """
        held, self.name = self.held, None
        try:
            return self._took(self._models.engine_for(model), model, held)
        except UnknownModel:
            self.name = held.model if held else None
            raise

    def engine_of_job(self, job: JobRow) -> tuple[Engine, PinnedModel | None]:
        """The engine that a job is pinned to, and the pin.

        A job without a pin is pinned to the model by the options in force; the pin stays None for an
        engine without an identity.

        Raises:
            ActographError: as `ModelHolder.engine_for` and `engine_as`.
            HeldElsewhere: only another worker can run the job.
        """
        pinned = job_pins.of_job(job)
        if pinned is None:
            engine = self.engine_for(job.model)
            pinned = job_pins.of_structure(engine.structure)
            if pinned is None:
                return engine, None
            with self._database.write() as session:
                # of two workers the first one decides, and the second one loads the model as pinned
                pinned = job_pins.pin(session, job.id, pinned)
        return self._pinned_engine(job, pinned), pinned

    def _pinned_engine(self, job: JobRow, pinned: PinnedModel) -> Engine:
        identity = pinned.identity
        if self.held == Held(job.model, identity.sha256):
            return self._as_pinned(pinned)
        with self._database.read() as session:
            current = workers.structure(session, job.model)
        if current is not None and is_same(current.identity, identity):
            engine = self.engine_for(job.model)
            if is_same(engine.structure.identity, identity):
                return engine
        engine = self._as_pinned(pinned)
        differences = ""
        if current is not None and current.identity is not None:
            differences = current.identity.differences(identity)
        with self._database.write() as session:
            job_pins.note_reload(session, job.id, pinned, differences)
        logger.info("model %s is loaded as job %s is pinned to it: %s", job.model, job.id, differences)
        return engine

    def _as_pinned(self, pinned: PinnedModel) -> Engine:
        held, self.name = self.held, None
        try:
            return self._took(self._models.engine_as(pinned.identity), pinned.identity.model, held)
        except UnknownModel:
            self.name = held.model if held else None
            raise
        except (ModelChanged, ModelRefused):
            # the former model if its files are seen to differ, else the one that was loaded, or none
            engine = self._models.engine
            if engine is not None:
                self._took(engine, engine.structure.model, held)
            with self._database.read() as session:
                if job_pins.another_holds(session, self._worker_id, pinned):
                    raise HeldElsewhere from None
            raise

    def _took(self, engine: Engine, model: str, held: Held | None) -> Engine:
        self.name = model
        identity = engine.structure.identity
        self._identity_sha256 = None if identity is None else identity.sha256
        if held != self.held:
            self.changed_at = time.monotonic()
        return engine

    def load_as_asked(self, job: JobRow) -> None:
        """Run a job of kind `load`; if its model is refused, go on with the former one."""
        previous, self.name = self.name, None
        refused: ActographError | None = None
        try:
            engine = self._models.load(job.model, ModelLoadOptions.model_validate(job.spec))
            self._took(engine, job.model, None)
        except ActographError as error:
            # the frames of the error hold what was loaded, which must go before anything else comes
            error.__cause__ = error.__context__ = None
            refused = error.with_traceback(None)
        with self._database.write() as session:
            if refused is None:
                model_loads.complete(session, job.id)
            else:
                logger.warning("model %s is refused: %s", job.model, refused)
                model_loads.fail(session, job.id, refused)
        if refused is not None and previous is not None:
            self._load_again(previous)

    def _load_again(self, model: str) -> None:
        try:
            self.engine_for(model)
        except ActographError as error:
            logger.error("model %s, which was there before, cannot be loaded again: %s", model, error)
