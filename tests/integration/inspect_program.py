"""Runs under inspect_ai's own Python (`.venv-inspect`): evaluations, and logs as inspect_ai reads them.

Each line of standard input is a request, a JSON object; each line of standard output its answer. The fixture
`inspect` starts it; nothing imports it.
"""

import json
import os
import sys
from typing import Any

import inspect_ai
from inspect_ai import analysis, scorer
from inspect_ai import log as logs


def evaluate(request: dict[str, Any]) -> dict[str, Any]:
    """Run a task, one sample at a time; what is read in its log."""
    (log,) = inspect_ai.eval(
        request["task"],
        model=request["model"],
        model_base_url=request["base_url"],
        model_args=request["model_args"],
        log_dir=request["logs"],
        display="none",
        max_samples=1,
    )
    assert log.status == "success", log.error
    return read(request)


def read(request: dict[str, Any]) -> dict[str, Any]:
    """All logs of a folder."""
    return {"logs": [described(info) for info in logs.list_eval_logs(request["logs"])]}


def described(info: Any) -> dict[str, Any]:
    """One log, through every way in which inspect_ai reads it."""
    whole = logs.read_eval_log(info)
    summaries = logs.read_eval_log_sample_summaries(info)
    first = logs.read_eval_log_sample(info, id=whole.samples[0].id, epoch=whole.samples[0].epoch)
    assert first == whole.samples[0]
    assert logs.read_eval_log(info, header_only=True).eval == whole.eval
    return {
        "listed_as": info.task,
        "status": whole.status,
        "task": whole.eval.task,
        "model": whole.eval.model,
        "run_id": whole.eval.run_id,
        "epochs": whole.eval.config.epochs,
        "summaries": [[one.id, one.epoch, one.completed, one.error] for one in summaries],
        "results": whole.results.model_dump(),
        "config": whole.plan.config.model_dump(exclude_none=True),
        "samples": [one.model_dump(exclude_none=True) for one in whole.samples],
    }


def frames(request: dict[str, Any]) -> dict[str, Any]:
    """The data frames of a log, and its scores after `inspect_ai.score`."""
    log = request["log"]
    messages = analysis.messages_df(log, quiet=True)
    events = analysis.events_df(log, quiet=True)
    scored = inspect_ai.score(logs.read_eval_log(log), scorer.match(), action="append", display="none")
    return {
        "messages": messages[["sample_id", "role", "content"]].to_dict("records"),
        "events": events[["sample_id", "event"]].to_dict("records"),
        "scored": sorted(scored.samples[0].scores),
    }


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Inspect prints
    operations = {"evaluate": evaluate, "read": read, "frames": frames}
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(operations[request["op"]](request), default=str) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
