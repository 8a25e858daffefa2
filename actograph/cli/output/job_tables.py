"""Jobs and their results as tables."""

import json
import time
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from actograph.cli.output import tables
from actograph.contract.resources import Job, JobResults, JobStatus
from actograph.contract.specs import submitted_spec_adapter
from actograph.progress import duration

HEADERS = ("JOB ID", "KIND", "MODEL", "STATUS", "ETA", "PRIORITY", "AGE", "TAGS")
RESULT_HEADERS = ("Tasks", "Condition", "Filter", "n-shot", "Metric", "Value", "Stderr", "Samples", "Failed")
_NUMBERS = ("n-shot", "Value", "Stderr", "Samples", "Failed")


def render_jobs(jobs: Sequence[Job], *, full: bool) -> str:
    return tables.render(HEADERS, [_row(job, full=full) for job in jobs], right=("PRIORITY",))


def status_text(job: Job) -> str:
    """`in_progress 312/1319, 2 failed`."""
    done = job.progress.completed + job.progress.failed
    text = str(job.status)
    if job.status is JobStatus.QUEUED and job.queue_position is not None:
        text += f" #{job.queue_position}"
    elif job.progress.total:
        text += f" {done}/{job.progress.total}"
    text += ", paused" if job.paused_reason else ""
    return text + (f", {job.progress.failed} failed" if job.progress.failed else "")


def render_results(results: JobResults, num_fewshot: int | None) -> str:
    """Render one row per condition, metric and filter, with lm-eval's column names.

    A condition without scores has one row with its numbers of samples. If no condition has scores, as in a
    capture job, the columns for scores are left out.
    """
    if not any(condition.metrics for condition in results.conditions.values()):
        bare = [[name, str(one.samples), str(one.failed)] for name, one in results.conditions.items()]
        return tables.render(("Condition", "Samples", "Failed"), bare, right=_NUMBERS)
    rows = []
    for name, condition in results.conditions.items():
        counts = [str(condition.samples), str(condition.failed)]
        shots = "" if num_fewshot is None else str(num_fewshot)
        scored = {key: value for key, value in condition.metrics.items() if "_stderr," not in key}
        for key, value in scored.items():
            metric, _, filter_name = key.partition(",")
            stderr = condition.metrics.get(f"{metric}_stderr,{filter_name}")
            figures = [tables.figure(value), tables.figure(stderr)]
            rows.append([condition.alias, name, filter_name, shots, metric, *figures, *counts])
        if not scored:
            rows.append([condition.alias, name, "", shots, "", "", "", *counts])
    return tables.render(RESULT_HEADERS, rows, right=_NUMBERS)


def describe(job: Job) -> str:
    """Describe a job, one field per line; default fields of the spec are left out."""
    fields = {
        "id": job.id,
        "kind": job.kind,
        "model": job.model,
        "status": status_text(job),
        "paused": job.paused_reason or "",
        "owner": job.owner or "",
        "priority": str(job.priority),
        "tags": ", ".join(job.tags),
        "deadline": _moment(job.deadline_at),
        "created": tables.age(job.created_at) + " ago",
        "started": tables.age(job.started_at) + " ago" if job.started_at is not None else "",
        "took": _took(job),
        "rate": f"{job.samples_per_second:.2f} samples/s" if job.samples_per_second else "",
        "eta": duration(job.eta_seconds) if job.eta_seconds is not None else "",
        "error": f"{job.error.type}: {job.error.message}" if job.error else "",
        "metadata": ", ".join(f"{key}={value}" for key, value in job.metadata.items()),
    }
    lines = [tables.fields(fields, 10), "spec:       (fields that are not the default)"]
    lines += [
        f"  {key}: {tables.clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))}"
        for key, value in _stated(job.spec).items()
    ]
    return "\n".join(lines)


def _stated(spec: dict[str, Any]) -> dict[str, Any]:
    """Fields of a spec that differ from the defaults; all fields of an unknown form."""
    try:
        found = submitted_spec_adapter.validate_python(spec).model_dump(mode="json", exclude_defaults=True)
    except ValidationError:
        found = spec
    told = ("kind", "model", "priority", "tags", "metadata")
    return {key: value for key, value in found.items() if key not in told and value not in (None, [], {})}


def _row(job: Job, *, full: bool) -> list[str]:
    return [
        tables.shorten(job.id, full=full),
        job.kind,
        job.model,
        status_text(job),
        duration(job.eta_seconds) if job.eta_seconds is not None else "",
        str(job.priority),
        tables.age(job.created_at),
        ",".join(job.tags),
    ]


def _took(job: Job) -> str:
    if job.started_at is None or job.finished_at is None:
        return ""
    return duration(job.finished_at - job.started_at)


def _moment(seconds: int | None) -> str:
    return "" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
