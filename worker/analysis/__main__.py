"""`actograph service analysis`: the worker for analyses, configured by ACTOGRAPH_* variables.

One process without a model: Celery's thread takes wake-ups, a second one runs the analyses, and a third one
beats. It yields the processor to workers that hold a model.
"""

import logging
import os
import signal
import sys

from sqlalchemy.orm import Session

from actograph.contract.analyses import ANALYSIS
from actograph.contract.errors import ActographError
from actograph.settings import Settings, settings_or_exit
from storage import redaction
from storage.artifacts.factory import open_store
from storage.broker.hints import HintSender
from storage.index.database import Database
from storage.index.ids import new_worker_id
from storage.queue import workers
from worker.analysis.drain import AnalysisDrain
from worker.process.entry import enter
from worker.process.listening import Listening
from worker.process.periodic import FORGOTTEN, heartbeat, idle_look
from worker.process.rollout import SchemaWatch
from worker.process.wake_ups import take_wake_ups
from worker.signals.hints import HEARTBEAT_SECONDS, Hints
from worker.signals.stop_signal import StopSignal

#: of `os.nice`: models on the same processors go first
NICENESS = 10


class AnalysisWorker:
    """Index, store, drain and threads of the process."""

    def __init__(self, settings: Settings, stop: StopSignal) -> None:
        """Register the worker.

        Raises:
            ServiceUnavailable: see `enter`.
        """
        self._database, self.worker_id, self._stop = Database.of(settings), new_worker_id(), stop
        enter(settings, self._database, stop, self.worker_id, model=ANALYSIS, served=[ANALYSIS])
        self._database.announce = HintSender(settings.broker_url)
        hints = Hints()
        self._listening = Listening(settings, hints, [ANALYSIS])
        self._drain = AnalysisDrain(
            settings=settings,
            database=self._database,
            store=open_store(settings.effective_artifact_url),
            worker_id=self.worker_id,
            stop=stop,
            hints=hints,
        )
        self._schema = SchemaWatch(self._end)
        self._heartbeat = heartbeat(
            self._database,
            self.worker_id,
            seconds=min(HEARTBEAT_SECONDS, settings.lease_seconds / 3),
            memory=dict,
            forgotten=self._forgotten,
            check_leases=self._check,
        )
        self._look = idle_look(self._drain.look, hints, seconds=settings.idle_poll_seconds)

    def _check(self, session: Session) -> None:
        self._schema.check(session)
        self._drain.check_leases(session)

    def _forgotten(self) -> None:
        self._end(FORGOTTEN)

    def _end(self, failure: str) -> None:
        if not self._stop.is_set():
            self._stop.set(failure)
            os.kill(os.getpid(), signal.SIGTERM)

    def start(self) -> None:
        """Show the worker as ready, and look for analyses."""
        with self._database.write() as session:
            workers.set_idle(session, self.worker_id, ANALYSIS)
        self._heartbeat.start()
        self._look.start()
        self._listening.start()

    def wake(self) -> None:
        """Look for analyses now."""
        self._look.wake()

    def stop(self) -> None:
        """Wait for the running analysis, which saves its state, and show the worker as offline."""
        self._listening.stop()
        self._look.stop()
        self._heartbeat.stop()
        with self._database.write() as session:
            workers.set_offline(session, self.worker_id)
        self._database.close()


def main() -> int:
    """Run the worker. Returns 0 after an orderly stop, 1 if it cannot work with this index or store."""
    settings = settings_or_exit("worker")
    redaction.set_up_logging(settings)
    logging.getLogger("alembic").setLevel(logging.WARNING)
    os.nice(NICENESS)
    stop = StopSignal()
    try:
        worker = AnalysisWorker(settings, stop)
    except ActographError as error:
        # one line: `actograph up` shows the last one
        sys.stderr.write(f"worker: {' '.join(str(error).split())}\n")
        return 1
    worker.start()
    try:
        take_wake_ups(settings, [ANALYSIS], worker.wake, stop)
    except SystemExit as ended:
        if ended.code not in (None, 0):
            return 1
    finally:
        stop.set()
        worker.stop()
    if failure := stop.failure():
        sys.stderr.write(f"worker: {failure}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
