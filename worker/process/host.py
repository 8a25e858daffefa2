"""The host of an engine: index, store, model, drain and background threads of a worker."""

import logging
import os
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property

from sqlalchemy.orm import Session

from actograph.contract.errors import ActographError, ModelRefused
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.models import ModelStructure, parse_served
from actograph.settings import Settings
from storage.artifacts.factory import open_store
from storage.artifacts.store import ArtifactStore
from storage.broker.hints import HintSender
from storage.index.database import Database
from storage.index.ids import new_worker_id
from storage.queue import model_loads, workers
from worker.drain.drain import Drain
from worker.drain.model_holder import ModelHolder
from worker.process.ending import Ending, IdleWatch
from worker.process.entry import enter
from worker.process.listening import Listening
from worker.process.periodic import FORGOTTEN, Periodic, heartbeat, idle_look
from worker.process.rollout import SchemaWatch
from worker.process.work_rate import WorkRate
from worker.signals.hints import HEARTBEAT_SECONDS, Hints
from worker.signals.stop_signal import StopSignal

logger = logging.getLogger(__name__)


def served_models(settings: Settings) -> list[str]:
    """Names of the models that a worker with these settings may hold, its first one first."""
    sources = (settings.model, *(settings.allowed_models if settings.model_switching else ()))
    return list(dict.fromkeys(parse_served(text).name for text in sources if text))


class Host:
    """What a worker's process holds beside the engine's own process."""

    def __init__(
        self, settings: Settings, stop: StopSignal, served: Sequence[str], ending: Ending | None = None
    ) -> None:
        """`ending`: when the worker ends by itself; None: never."""
        self._settings = settings
        self._stop = stop
        self._served = list(served)
        #: what ends with this worker, the last one first
        self._ends = ExitStack()
        self._has_failed = False
        self.worker_id = new_worker_id()
        self._database = Database.of(settings)
        self._database.announce = HintSender(settings.broker_url)
        self._hints = Hints()
        self._listening = Listening(settings, self._hints, served)
        self._models = ModelHolder(settings, self._loaded, self._options_of)
        self._ending = ending or Ending()
        self._schema = SchemaWatch(self._end)
        self._idle = IdleWatch(self._ending, self._database, self._served, self._end)
        self._rate = WorkRate()
        self._heartbeat = heartbeat(
            self._database,
            self.worker_id,
            seconds=min(HEARTBEAT_SECONDS, settings.lease_seconds / 3),
            memory=self._numbers,
            forgotten=self._forgotten,
            check_leases=self._check,
        )

    def start(self) -> None:
        """Register the worker, load its model and start the background threads.

        Raises:
            ActographError: the model or the schema is refused; the reason is in the index.
        """
        settings = self._settings
        name = parse_served(settings.model).name if settings.model else ""
        self._ends.callback(self._database.close)
        enter(settings, self._database, self._stop, self.worker_id, model=name, served=self._served)
        self._ends.callback(self._leave)
        self._ends.callback(self._models.close)
        self._run(self._heartbeat)
        try:
            if not self._served:
                raise ModelRefused("no model is set; set ACTOGRAPH_MODEL or use `up --model`")
            if name:
                self.drain.load(name)
            else:  # the first job, or a request to load a model, names one
                with self._database.write() as session:
                    workers.set_idle(session, self.worker_id, "")
            self._run(self._idle_look)
            self._run(self._listening)
        except ActographError as error:
            with self._database.write() as session:
                workers.set_failed(session, self.worker_id, error)
            self._has_failed = True
            raise

    def _run(self, thread: Periodic | Listening) -> None:
        thread.start()
        self._ends.callback(thread.stop)

    def wake(self) -> None:
        """Look for jobs now."""
        self._idle_look.wake()

    @cached_property
    def _idle_look(self) -> Periodic:
        return idle_look(self._look, self._hints, seconds=self._settings.idle_poll_seconds)

    def _look(self) -> None:
        has_worked = self.drain.look()
        if self._ending.is_wanted and not self._stop.is_set():
            self._idle.note(has_worked)

    @cached_property
    def _store(self) -> ArtifactStore:
        return open_store(self._settings.effective_artifact_url, settings=self._settings)

    @cached_property
    def drain(self) -> Drain:
        settings = self._settings
        return Drain(
            settings=settings,
            database=self._database,
            store=self._store,
            models=self._models,
            worker_id=self.worker_id,
            stop=self._stop,
            may_load=self._served,
            hints=self._hints,
        )

    def stop(self) -> None:
        """Stop the threads and the engine's process, and show the worker as offline."""
        self._ends.close()

    def _leave(self) -> None:
        if "drain" in vars(self):
            self.drain.close()
        if not self._has_failed:
            with self._database.write() as session:
                workers.set_offline(session, self.worker_id)

    def _numbers(self) -> dict[str, int]:
        """Memory, work since the last heartbeat, and sessions that wait for the store."""
        memory = self._rate.numbers(self._models.memory())
        return memory | (self.drain.numbers() if "drain" in vars(self) else {})

    def _check(self, session: Session) -> None:
        self._schema.check(session)
        if "drain" in vars(self):
            self.drain.check_leases(session)

    def _forgotten(self) -> None:
        self._end(FORGOTTEN)

    def _end(self, failure: str = "") -> None:
        """Stop the process."""
        if not self._stop.is_set():
            self._stop.set(failure)
            os.kill(os.getpid(), signal.SIGTERM)

    def _options_of(self, model: str) -> ModelLoadOptions:
        with self._database.read() as session:
            return model_loads.options_in_force(session, model)

    def _loaded(self, structure: ModelStructure) -> None:
        def show(session: Session) -> None:
            model_loads.loaded(session, self.worker_id, structure, self._models.options)
            # plans need the memory before the first heartbeat
            workers.heartbeat(session, self.worker_id, self._rate.numbers(self._models.memory()))

        self._database.insist(show, give_up=self._stop.is_set)
