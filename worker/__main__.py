"""`python -m worker`: a worker in the foreground, configured by ACTOGRAPH_* variables.

It is the host of an engine's process. Celery's thread takes wake-ups, unless there is no broker; others run
the queue. No torch here. `actograph worker` sets the variables and starts it.
"""

import argparse
import logging
import os
import signal
import sys
from collections.abc import MutableMapping, Sequence
from pathlib import Path

from actograph.contract.errors import ActographError
from actograph.settings import settings_or_exit
from storage import redaction
from worker.process.ending import Ending
from worker.process.host import Host, served_models
from worker.process.wake_ups import take_wake_ups
from worker.signals.stop_signal import StopSignal

logger = logging.getLogger(__name__)


def main(arguments: Sequence[str] = ()) -> int:
    """Run the worker. Returns 0 after an orderly stop, 1 if the model could not be loaded."""
    parser = argparse.ArgumentParser(prog="python -m worker", description="Run a worker until SIGTERM.")
    parser.add_argument("--drain", action="store_true", help="exit once no job of the models is open")
    parser.add_argument("--max-idle", type=float, metavar="SECONDS", help="exit after so long without work")
    given = parser.parse_args(arguments)
    # Celery would put the working directory first, before our packages `worker` and `storage`
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    settings = settings_or_exit("worker")
    tune_for_cpu(os.environ)
    redaction.set_up_logging(settings)
    for noisy in ("alembic", "httpx"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    stop, served = StopSignal(), served_models(settings)
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, lambda *_: _end_early(stop))
    host = Host(settings, stop, served, Ending(drain=given.drain, max_idle=given.max_idle))
    try:
        host.start()
        if settings.broker_url:
            take_wake_ups(settings, served, host.wake, stop)
        while not stop.is_set():  # SIGTERM ends it
            signal.pause()
    except SystemExit as ended:
        if ended.code not in (None, 0) and not stop.failure():
            return int(ended.code) if isinstance(ended.code, int) else 1
    except Exception as error:
        if not isinstance(error, ActographError):
            logger.exception("the worker could not be set up")
        stop.set(failure=str(error) or type(error).__name__)
    finally:
        stop.set()
        host.stop()
    if failure := stop.failure():
        # one line: `actograph up` shows the last one
        sys.stderr.write(f"worker: {' '.join(failure.split())}\n")
        return 1
    return 0


def _end_early(stop: StopSignal) -> None:
    """A stop while the model is loaded, or without Celery."""
    stop.set()
    raise SystemExit(0)


def tune_for_cpu(environment: MutableMapping[str, str]) -> None:
    """Set defaults for models on a CPU; the engine's process inherits them."""
    # Idle OpenMP threads spin by default: on a shared CPU a small model ran 17 times slower
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", "5000")
    # Activations of long prompts take tens of MB each: without large pages prefill is a fifth slower
    environment.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # oneDNN keeps kernels of 0.6 MB for each number of rows and shape of weight, 1,024 by default. 256 are as
    # fast; with 64 a drain is slower. torch has a cache of its own in front.
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        environment.setdefault(cache, "256")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
