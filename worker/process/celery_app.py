"""The worker's Celery app: one task, and one child process with the model.

The parent imports neither torch nor the engine. The child loads the model before its first task and runs one
task at a time.
"""

import logging
import os
import signal
from typing import TYPE_CHECKING, Any

from celery import signals

from actograph import redaction
from actograph.contract.errors import ActographError
from actograph.contract.models import parse_served
from actograph.settings import Settings
from storage.broker.broker import WAKE_TASK, celery_app
from worker.signals.stop_signal import StopSignal

if TYPE_CHECKING:
    from worker.process.child import WorkerProcess

logger = logging.getLogger(__name__)


def served_models(settings: Settings) -> list[str]:
    """Names of the models that a worker with these settings may hold, its first one first."""
    sources = (settings.model, *(settings.allowed_models if settings.model_switching else ()))
    return list(dict.fromkeys(parse_served(text).name for text in sources if text))


_served = served_models(Settings())
app = celery_app(Settings().broker_url, _served)

#: set in the child only
_process: "WorkerProcess | None" = None
#: set in the parent only, by worker/__main__.py
stop_signal: StopSignal | None = None


@app.task(name=WAKE_TASK)  # type: ignore[untyped-decorator]
def wake(_model: str) -> None:
    """Run the jobs that the index has for this worker."""
    if _process is None:
        raise RuntimeError("this process was not set up as a worker's child")
    _process.drain.serve()


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
    try:
        _process = WorkerProcess(Settings(), stop, _served)
        _process.start()
    except Exception as error:  # Celery would only log it and go on without a model
        if not isinstance(error, ActographError):
            logger.exception("the worker could not be set up")
        stop.set(failure=str(error) or type(error).__name__)
        os.kill(os.getppid(), signal.SIGTERM)
        os._exit(1)


@signals.worker_process_shutdown.connect  # type: ignore[untyped-decorator]
def _end(**_: Any) -> None:
    if _process is not None:
        _process.stop()
