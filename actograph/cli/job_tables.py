"""Jobs, their results, comparisons and estimates as tables."""

import json
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from actograph.cli.output import age, clean, fields, render, size
from actograph.progress import duration

if TYPE_CHECKING:
    from actograph.contract.operations import Estimate
    from actograph.contract.resources import (
        ActivationComparison,
        Job,
        JobComparison,
        JobResults,
        PairedDifference,
    )

RESULTS = ("Tasks", "Condition", "Filter", ">n-shot", "Metric", ">Value", ">Stderr", ">Samples", ">Failed")
SCORES = ("Condition", "Metric", ">Pairs", ">Baseline", ">Value", ">Difference", "Interval", ">McNemar p")
ACTIVATIONS = ("Hook", ">Pairs", ">Baseline", ">Value", ">Difference", ">Cosine", ">Consistency", "Vector")


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
    return render(RESULTS, rows)


def describe_job(job: "Job") -> str:
    """Describe a job, one field per line; default fields of the spec are left out."""
    took = None
    if job.started_at is not None and job.finished_at is not None:
        took = duration(job.finished_at - job.started_at)
    values = {
        "id": job.id,
        "kind": job.kind,
        "model": job.model,
        "status": status_text(job),
        "paused": job.paused_reason,
        "owner": job.owner,
        "priority": job.priority,
        "tags": ", ".join(job.tags),
        "deadline": job.deadline_at and time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(job.deadline_at)),
        "created": f"{age(job.created_at)} ago",
        "started": job.started_at and f"{age(job.started_at)} ago",
        "took": took,
        "rate": f"{job.samples_per_second:.2f} samples/s" if job.samples_per_second else "",
        "eta": None if job.eta_seconds is None else duration(job.eta_seconds),
        "error": job.error and f"{job.error.type}: {job.error.message}",
        "metadata": ", ".join(f"{key}={value}" for key, value in job.metadata.items()),
    }
    lines = [fields(values, 10), "spec:       (fields that are not the default)"]
    for key, value in _stated(job.spec).items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        lines.append(f"  {key}: {clean(text)}")
    return "\n".join(lines)


def _stated(spec: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec that differ from the defaults; all fields of an unknown form."""
    from pydantic import ValidationError

    from actograph.contract.job_specs import job_spec_adapter

    with suppress(ValidationError):
        spec = job_spec_adapter.validate_python(spec).model_dump(mode="json", exclude_defaults=True)
    shown_above = ("kind", "model", "priority", "tags", "metadata")
    return {
        key: value for key, value in spec.items() if key not in shown_above and value not in (None, [], {})
    }


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


def activations_table(found: "ActivationComparison") -> str:
    """Render one row per hook: norms of the means and of their difference, and the stored vector."""
    rows = []
    for hook, difference in found.hooks.items():
        norms = [difference.baseline_norm, difference.condition_norm, difference.difference_norm]
        cosines = [difference.cosine_similarity, difference.consistency]
        figures = [f"{norm:.4g}" for norm in norms]
        figures += ["N/A" if cosine is None else f"{cosine:.4f}" for cosine in cosines]
        rows.append([hook, difference.pairs, *figures, difference.vector_id])
    skipped = f" ({found.skipped} without them)" if found.skipped else ""
    head = f"{found.condition} - {found.baseline}, positions: {found.positions}, {found.pairs} pairs{skipped}"
    return f"{head}\n\n{render(ACTIVATIONS, rows)}"


def describe_estimate(found: "Estimate") -> str:
    """Describe an estimate: its fields, a table of needs, and the assumptions."""
    mean, longest = _known(found.prompt_tokens_mean), _known(found.prompt_tokens_longest)
    values = {
        "model": found.model,
        "samples": _known(found.samples),
        "hooks": _known(None if found.hooks is None else len(found.hooks)),
        "prompt tokens": f"mean {mean}, longest {longest}",
        "generated": f"at most {found.generated_tokens}" if found.generated_tokens else "nothing",
        "per token": _size(found.bytes_per_token),
        "per sample": _size(found.bytes_per_sample),
        "slots": _known(found.slots),
        "weights": _size(found.weights_bytes),
        "fits": _verdict(found.fits),
    }
    needs = {"device": found.device, "host": found.host, "disk": found.disk}
    rows = [
        [name, _size(need.needed), _size(need.available), _verdict(need.fits)] for name, need in needs.items()
    ]
    table = render(("RESOURCE", ">NEEDED", ">AVAILABLE", "FITS"), rows)
    return "\n".join([fields(values, 14), "", table, "", *(f"- {clean(text)}" for text in found.assumptions)])


def _verdict(fits: bool | None) -> str:
    return "unknown" if fits is None else "yes" if fits else "no"


def _known(value: int | None) -> str:
    return "unknown" if value is None else str(value)


def _size(value: int | None) -> str:
    return "unknown" if value is None else size(value)
