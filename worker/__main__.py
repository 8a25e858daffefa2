"""`python -m worker`: the Celery worker in the foreground, configured by ACTOGRAPH_* variables."""

import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

from actograph.settings import Settings
from worker.process import celery_app
from worker.process.scratch import scratch_folder
from worker.signals.stop_signal import StopSignal


def main() -> int:
    """Run the worker. Returns 0 after an orderly stop, 1 if the model could not be loaded."""
    # Celery puts the working directory before all else unless it is on the path already, and a user's
    # own folder named `worker` or `storage` must not be taken for ours
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    tune_for_cpu(os.environ)
    with scratch_folder() as folder:
        celery_app.stop_signal = stop = StopSignal.create(folder)
        options = ["--without-gossip", "--without-mingle"]
        try:
            celery_app.app.worker_main(["worker", "--loglevel", Settings().log_level, *options])
        except SystemExit as ended:
            if ended.code not in (None, 0) and not stop.failure():
                return int(ended.code) if isinstance(ended.code, int) else 1
        if failure := stop.failure():
            sys.stderr.write(f"worker: {failure}\n")
            return 1
    return 0


def tune_for_cpu(environment: MutableMapping[str, str]) -> None:
    """Set defaults for models on a CPU; they must be set before torch is imported."""
    # Idle OpenMP threads spin by default: on a shared CPU a small model ran 17 times slower. This short
    # spin costs nothing on an idle CPU
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", "5000")
    # Activations of long prompts take tens of MB each. Small pages cost a fifth of the time of reading 16
    # prompts of up to 317 tokens
    environment.setdefault("THP_MEM_ALLOC_ENABLE", "1")


if __name__ == "__main__":
    sys.exit(main())
