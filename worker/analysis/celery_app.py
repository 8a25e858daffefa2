"""The Celery app of an analysis worker: one queue, whose messages only wake the drain."""

import threading
from typing import Any

from celery import Celery, signals

from actograph import redaction
from actograph.contract.specs import ANALYSIS_QUEUE
from actograph.settings import Settings
from storage.broker.broker import WAKE_TASK, celery_app
from worker.signals.stop_signal import StopSignal


def create(settings: Settings, woken: threading.Event, stop: StopSignal) -> Celery:
    """The app of this process. A message sets `woken`, and the begin of a shutdown sets both."""
    app = celery_app(settings.broker_url, [ANALYSIS_QUEUE])
    # tasks end at once, so no child process is needed
    app.conf.worker_pool = "solo"

    @app.task(name=WAKE_TASK)  # type: ignore[untyped-decorator]
    def wake(model: str, hops: int) -> None:
        woken.set()

    @signals.worker_shutting_down.connect(weak=False)  # type: ignore[untyped-decorator]
    def stopping(**_: Any) -> None:
        stop.set()
        woken.set()

    @signals.setup_logging.connect(weak=False)  # type: ignore[untyped-decorator]
    def logging_set_up(**_: Any) -> None:
        redaction.set_up_logging(settings)

    return app
