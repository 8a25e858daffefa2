"""Runs under inspect_ai's own Python (`.venv-inspect`): what it reads in the logs of a folder.

Writes one JSON list to standard output. It is started by the fixture `read_inspect_logs`; no test imports it.
"""

import importlib
import json
import sys
from typing import Any


def described(info: Any) -> dict[str, Any]:
    """One log, through every way in which inspect_ai reads it."""
    log = importlib.import_module("inspect_ai.log")
    whole = log.read_eval_log(info)
    summaries = log.read_eval_log_sample_summaries(info)
    first = log.read_eval_log_sample(info, id=whole.samples[0].id, epoch=whole.samples[0].epoch)
    assert first == whole.samples[0]
    assert log.read_eval_log(info, header_only=True).eval == whole.eval
    return {
        "name": info.name,
        "listed_as": info.task,
        "status": whole.status,
        "task": whole.eval.task,
        "model": whole.eval.model,
        "run_id": whole.eval.run_id,
        "epochs": whole.eval.config.epochs,
        "summaries": [[one.id, one.epoch, one.completed, one.error] for one in summaries],
        "results": whole.results.model_dump(),
        "config": whole.plan.config.model_dump(exclude_none=True),
        "usage": {
            name: usage.model_dump(exclude_none=True) for name, usage in whole.stats.model_usage.items()
        },
        "samples": [one.model_dump(exclude_none=True) for one in whole.samples],
    }


if __name__ == "__main__":
    logs = importlib.import_module("inspect_ai.log")
    found = [described(info) for info in logs.list_eval_logs(sys.argv[1])]
    sys.stdout.write(json.dumps(found, default=str))
