"""Jobs, their results, comparisons and estimates as text."""

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from actograph.cli.tables import clean, describe, render
from actograph.short_texts import duration, gib

if TYPE_CHECKING:
    from actograph.contract.operations import CardEstimate, Estimate
    from actograph.contract.resources import Job, JobComparison, JobResults, PairedDifference

RESULTS = ("Tasks", "Condition", "Filter", ">n-shot", "Metric", ">Value", ">Stderr", ">Samples", ">Failed")
SCORES = ("Condition", "Metric", ">Pairs", ">Baseline", ">Value", ">Difference", "Interval", ">McNemar p")


def status_text(job: "Job") -> str:
    """`in_progress 312/1319, 2 failed`."""
    text = str(job.status)
    if job.status == "queued" and job.queue_position is not None:
        text += f" #{job.queue_position}"
    elif job.progress.total:
        text += f" {job.progress.completed + job.progress.failed}/{job.progress.total}"
    text += ", paused" if job.paused_reason else ""
    return text + (f", {job.progress.failed} failed" if job.progress.failed else "")


def results_table(results: "JobResults", num_fewshot: int | None) -> str:
    """Render one row per condition, metric and filter, with lm-eval's column names.

    Without any scores, as of a capture job, the columns for scores are left out.
    """
    if not any(condition.metrics for condition in results.conditions.values()):
        counts = [[name, one.samples, one.failed] for name, one in results.conditions.items()]
        return render(("Condition", ">Samples", ">Failed"), counts)
    rows: list[list[object]] = []
    for name, condition in results.conditions.items():
        scored = [key for key in condition.metrics if "_stderr," not in key]
        for key in scored or [","]:
            metric, _, filter_name = key.partition(",")
            figures = [condition.metrics.get(key), condition.metrics.get(f"{metric}_stderr,{filter_name}")]
            shown = ["N/A" if value is None else f"{value:.4f}" for value in figures] if scored else ["", ""]
            row = [condition.alias, name, filter_name, num_fewshot, metric, *shown]
            rows.append([*row, condition.samples, condition.failed])
    left_out = [
        f"{name}: {key} leaves out {count} problem(s) with too few completed epochs"
        for name, condition in results.conditions.items()
        for key, count in condition.left_out.items()
    ]
    return "\n".join([render(RESULTS, rows), *left_out])


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


def scores_table(found: "JobComparison") -> str:
    """Render one row per condition and metric."""
    rows = []
    for name, condition in found.conditions.items():
        for key, metric in condition.metrics.items():
            p = "" if metric.mcnemar_p is None else f"{metric.mcnemar_p:.4g}"
            rows.append([name, key, *_figures(metric, 4), p])
        rows.append([name, "prompt_tokens", *_figures(condition.prompt_tokens, 1), ""])
        rows.append([name, "generated_tokens", *_figures(condition.generated_tokens, 1), ""])
    return f"baseline: {found.baseline}\n\n{render(SCORES, rows)}"


def _figures(found: "PairedDifference", digits: int) -> list[object]:
    if found.baseline is None or found.condition is None or found.difference is None:
        return [found.pairs, "N/A", "N/A", "N/A", "N/A"]
    bounds = "N/A"
    if found.low is not None and found.high is not None:
        bounds = f"{found.low:+.{digits}f} to {found.high:+.{digits}f}"
    means = [f"{found.baseline:.{digits}f}", f"{found.condition:.{digits}f}"]
    return [found.pairs, *means, f"{found.difference:+.{digits}f}", bounds]


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
