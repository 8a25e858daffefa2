"""Jobs and estimates as text."""

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from actograph.short_texts import duration, gib
from actograph.tables import clean, describe, render

if TYPE_CHECKING:
    from actograph.contract.operations import CardEstimate, Estimate
    from actograph.contract.resources import Job


def status_text(job: "Job") -> str:
    """`in_progress 312/1319, 2 failed`."""
    text = str(job.status)
    if job.status == "queued" and job.queue_position is not None:
        text += f" #{job.queue_position}"
    elif job.progress.total:
        text += f" {job.progress.completed + job.progress.failed}/{job.progress.total}"
    text += ", paused" if job.paused_reason else ""
    return text + (f", {job.progress.failed} failed" if job.progress.failed else "")


def describe_job(job: "Job") -> str:
    """Describe a job, with the fields of its spec that are not the default."""
    from pydantic import ValidationError

    from actograph.contract.job_specs import job_spec_adapter

    spec: dict[str, Any] = job.spec
    with suppress(ValidationError):  # of another version
        spec = job_spec_adapter.validate_python(spec).model_dump(mode="json", exclude_defaults=True)
    spec = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in spec.items()
        if value not in (None, [], {}) and not hasattr(job, name)
    }
    error = job.error and f"{job.error.type}: {job.error.message}"
    took = None
    if job.started_at is not None and job.finished_at is not None:
        took = duration(job.finished_at - job.started_at)
    hidden = ("progress", "queue_position", "model_identity", "identity_sha256", "results_url")
    return describe(job, hidden, status=status_text(job), took=took, error=error, spec=spec)


def describe_card(found: "CardEstimate") -> str:
    """Describe what fits on a card, in GiB, and how many samples of which length."""
    sizes = ("card", "weights", "pass", "spare", "run", "host_buffer")
    shown = {name: gib(getattr(found, f"{name}_bytes")) for name in sizes if getattr(found, f"{name}_bytes")}
    hidden = ["assumptions", "lengths", *(f"{name}_bytes" for name in sizes)]
    table = render((">TOKENS", ">SAMPLES AT ONCE"), [[one.tokens, one.slots] for one in found.lengths])
    lines = [describe(found, hidden, **shown), "", table, ""]
    return "\n".join([*lines, *(f"- {clean(assumption)}" for assumption in found.assumptions)])


def describe_estimate(found: "Estimate") -> str:
    """Describe an estimate, then its assumptions."""
    hooks = None if found.hooks is None else len(found.hooks)
    fits = "unknown" if found.fits is None else found.fits
    lines = [describe(found, ["assumptions"], hooks=hooks, fits=fits), ""]
    return "\n".join([*lines, *(f"- {clean(assumption)}" for assumption in found.assumptions)])
