"""`python -m worker`: the Celery worker in the foreground, configured by ACTOGRAPH_* variables."""

import os
import sys
import tempfile
from collections.abc import MutableMapping
from pathlib import Path

from actograph.settings import settings_or_exit
from worker.signals.stop_signal import StopSignal


def main() -> int:
    """Run the worker. Returns 0 after an orderly stop, 1 if the model could not be loaded."""
    # Celery would put the working directory first, before our packages `worker` and `storage`
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    settings = settings_or_exit("worker")
    tune_for_cpu(os.environ)
    # it reads the settings when it is imported
    from worker.process import celery_app

    with tempfile.TemporaryDirectory(prefix="actograph-worker-") as folder:
        celery_app.stop_signal = stop = StopSignal.create(Path(folder))
        options = ["--without-gossip", "--without-mingle"]
        try:
            celery_app.app.worker_main(["worker", "--loglevel", settings.log_level, *options])
        except SystemExit as ended:
            if ended.code not in (None, 0) and not stop.failure():
                return int(ended.code) if isinstance(ended.code, int) else 1
        if failure := stop.failure():
            # one line: `actograph up` shows the last one
            sys.stderr.write(f"worker: {' '.join(failure.split())}\n")
            return 1
    return 0


def tune_for_cpu(environment: MutableMapping[str, str]) -> None:
    """Set defaults for models on a CPU; they must be set before torch is imported."""
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
    sys.exit(main())
