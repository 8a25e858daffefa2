"""The Celery app of the worker: one child process that holds the model, one task.

The parent imports neither torch nor the engine. The child is spawned, loads the model before
it takes its first task, and takes one task at a time.
"""

import logging
import os
import signal
from typing import TYPE_CHECKING, Any

from celery import signals

from actograph import redaction
from actograph.contract.errors import ActographError, ModelRefused
from actograph.settings import Settings
from storage.broker.broker import DRAIN_TASK, celery_app
from worker.process.setup_attempts import MOST, SetupAttempts
from worker.process.subscription import Subscription, SubscriptionStep
from worker.signals.stop_signal import StopSignal

if TYPE_CHECKING:
    from worker.process.child import WorkerProcess

logger = logging.getLogger(__name__)

app = celery_app(Settings().broker_url)
app.steps["consumer"].add(SubscriptionStep)

#: set in the child only
_process: "WorkerProcess | None" = None
#: set in the parent only, by worker/__main__.py
stop_signal: StopSignal | None = None


@app.task(name=DRAIN_TASK)  # type: ignore[untyped-decorator]
def drain(job_id: str) -> None:
    """Work on a job for one slice of time."""
    if _process is None:
        raise RuntimeError("this process was not set up as a worker's child")
    _process.drain.run_slice(job_id)


@signals.setup_logging.connect  # type: ignore[untyped-decorator]
def _set_up_logging(**_: Any) -> None:
    redaction.set_up_logging(Settings())
    for noisy in ("alembic", "celery.app.trace", "celery.worker.strategy", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


@signals.worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _tell_the_child(**_: Any) -> None:
    if stop_signal is not None:
        stop_signal.set()


@signals.worker_process_init.connect  # type: ignore[untyped-decorator]
def _start(**_: Any) -> None:
    global _process  # noqa: PLW0603 (one per process, by Celery's design)
    from transformers.utils.logging import disable_progress_bar

    from worker.process.child import WorkerProcess

    disable_progress_bar()  # type: ignore[no-untyped-call]  # a log file is no terminal
    stop = StopSignal.inherited()
    attempts = SetupAttempts(stop.folder / "setup-attempts")
    try:
        if not attempts.begin():
            raise ModelRefused(
                f"the process died {MOST} times while it loaded the model, most likely for want of memory; "
                "take a smaller model or dtype"
            )
        subscription = Subscription(stop.folder)
        subscription.write([])
        _process = WorkerProcess(Settings(), stop, subscription)
        _process.start()
        attempts.succeeded()
    except Exception as error:  # Celery would log it and go on without a model
        if not isinstance(error, ActographError):
            logger.exception("the worker could not be set up")
        stop.set(failure=str(error) or type(error).__name__)
        os.kill(os.getppid(), signal.SIGTERM)
        os._exit(1)


@signals.worker_process_shutdown.connect  # type: ignore[untyped-decorator]
def _end(**_: Any) -> None:
    if _process is not None:
        _process.stop()
