"""Wake-ups by Celery: its thread takes the messages, and the process's own threads do the work."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

from celery import signals

from actograph.settings import Settings
from storage.broker.broker import WAKE_TASK, celery_app
from worker.signals.stop_signal import StopSignal


def take_wake_ups(
    settings: Settings, models: Sequence[str], wake: Callable[[], object], stop: StopSignal
) -> None:
    """Call `wake` for each message of these models until the process is told to stop, which sets `stop`.

    Raises:
        SystemExit: Celery has ended.
    """
    app = celery_app(settings.broker_url, models)

    @app.task(name=WAKE_TASK)  # type: ignore[untyped-decorator]
    def look(_model: str) -> None:
        wake()

    def keep_logging(**_: Any) -> None:
        for noisy in ("celery.app.trace", "celery.worker.strategy"):
            logging.getLogger(noisy).setLevel(logging.WARNING)

    def end(**_: Any) -> None:
        stop.set()

    signals.setup_logging.connect(keep_logging, weak=False)
    signals.worker_shutting_down.connect(end, weak=False)
    options = ["--without-gossip", "--without-mingle", "--pool=solo"]
    app.worker_main(["worker", "--loglevel", settings.log_level, *options])
