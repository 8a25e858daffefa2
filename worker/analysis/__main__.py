"""`python -m worker.analysis`: an analysis worker in the foreground, configured by ACTOGRAPH_* variables."""

import os
import socket
import sys
import tempfile
import threading
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.specs import ANALYSIS_QUEUE
from actograph.settings import Settings
from storage import migrate
from storage.artifacts.factory import open_store
from storage.index import deployment
from storage.index.database import Database
from storage.index.ids import new_worker_id
from storage.queue import workers
from worker.analysis import celery_app
from worker.analysis.drain import AnalysisDrain
from worker.process.periodic import heartbeat
from worker.signals.attempts import Attempts
from worker.signals.process_end import is_alive
from worker.signals.stop_signal import StopSignal


def main() -> int:
    """Run the analysis worker until a stop signal."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    settings = Settings()
    with tempfile.TemporaryDirectory(prefix="actograph-analysis-") as folder:
        stop, woken = StopSignal.create(Path(folder)), threading.Event()
        app = celery_app.create(settings, woken, stop)
        drain = threading.Thread(target=_serve, args=(settings, stop, woken), name="analysis-drain")
        drain.start()
        options = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        try:
            app.worker_main(["worker", "--loglevel", settings.log_level, *options])
        except SystemExit as ended:
            return int(ended.code or 0) if isinstance(ended.code, int | None) else 1
        finally:
            stop.set()
            woken.set()
            drain.join()
    return 0


def _serve(settings: Settings, stop: StopSignal, woken: threading.Event) -> None:
    """Register the worker, and run jobs when woken and every few seconds."""
    database, worker_id = Database.of(settings), new_worker_id()
    database.insist(lambda session: session.execute(sa.select(1)), give_up=stop.is_set)
    migrate.require_current(database)
    deployment.check_store(database, settings.effective_artifact_url)

    def register(session: Session) -> None:
        workers.bury(session, socket.gethostname(), is_alive)
        workers.register(
            session, worker_id, hostname=socket.gethostname(), pid=os.getpid(), model=ANALYSIS_QUEUE
        )
        workers.set_idle(session, worker_id, ANALYSIS_QUEUE)

    database.insist(register, give_up=stop.is_set)
    beats = heartbeat(database, worker_id, seconds=settings.lease_seconds / 3, memory=dict)
    beats.start()
    drain = AnalysisDrain(
        settings=settings,
        database=database,
        store=open_store(settings.effective_artifact_url),
        worker_id=worker_id,
        stop=stop,
    )
    attempts = Attempts("analysis jobs cannot be run")
    try:
        while not stop.is_set():
            woken.clear()
            attempts.run(drain.look)
            woken.wait(settings.idle_poll_seconds)
    finally:
        beats.stop()
        with database.write() as session:
            workers.set_offline(session, worker_id)
        database.close()


if __name__ == "__main__":
    sys.exit(main())
