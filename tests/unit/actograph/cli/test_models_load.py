"""`actograph models load`: what it sends, and how it waits for the end."""

import json
from typing import Any

from actograph.contract.resources import ErrorRecord, JobStatus, ModelLoad
from tests.support.command_line import Run


def seen_as(status: JobStatus, error: str = "") -> ModelLoad:
    record = ErrorRecord(type="model_refused", message=error) if error else None
    return ModelLoad(id="job_" + "1" * 32, model="m", status=status, created_at=1, options={}, error=record)


def test_it_waits_until_the_model_is_there(service: Any, run: Run) -> None:
    service.model_loads = [seen_as(s) for s in (JobStatus.QUEUED, JobStatus.IN_PROGRESS, JobStatus.COMPLETED)]
    code, out, err = run(
        *("models", "load", "m", "--dtype", "bfloat16", "--max-memory", "0=20GiB", "--max-memory", "cpu=1GB"),
        *("--savepoint", "late=model.layers[3].output", "--savepoint", "x=embed"),
    )
    assert (code, out, err) == (0, "m completed\n", "")
    sent = [seen for seen in service.seen if "load" in seen.path]
    assert [seen.method for seen in sent] == ["POST", "GET", "GET"]
    assert json.loads(sent[0].body) == {
        "model_id": "m",
        "dtype": "bfloat16",
        "max_memory": {"0": "20GiB", "cpu": "1GB"},
        "savepoints": [
            {"name": "late", "selector": "model.layers[3].output"},
            {"name": "x", "selector": "embed"},
        ],
    }
