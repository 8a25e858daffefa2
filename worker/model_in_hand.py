"""The model that a drain works with: changed where a job is another model's, or a client asks for one."""

import logging
import time

from actograph.contract.errors import ActographError, UnknownModel
from actograph.contract.model_loads import ModelLoadOptions
from storage import model_loads
from storage.database import Database
from storage.models import JobRow
from worker.engine.engine import Engine
from worker.model_holder import ModelHolder

logger = logging.getLogger(__name__)


class ModelInHand:
    """`name` is what is loaded; None before the first load, and where the last one was refused."""

    def __init__(self, models: ModelHolder, database: Database) -> None:
        self._models = models
        self._database = database
        self.name: str | None = None
        #: `time.monotonic` of the last change
        self.changed_at = 0.0

    def engine_for(self, model: str) -> Engine:
        """The engine of this model, loaded if need be.

        Raises:
            ActographError: as `ModelHolder.engine_for`; unless UnknownModel, the old model is gone too.
        """
        held, self.name = self.name, None
        try:
            engine = self._models.engine_for(model)
        except UnknownModel:
            self.name = held
            raise
        self.name = model
        if held != model:
            self.changed_at = time.monotonic()
        return engine

    def load_as_asked(self, job: JobRow) -> None:
        """Run a job of kind `load`; where its model is refused, go on with the one that was there."""
        previous, self.name = self.name, None
        refused: ActographError | None = None
        try:
            self._models.load(job.model, ModelLoadOptions.model_validate(job.spec))
            self.name, self.changed_at = job.model, time.monotonic()
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
