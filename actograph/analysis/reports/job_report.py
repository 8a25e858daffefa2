"""Sections of a report: jobs, and results of analyses."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from actograph.analysis.reports import figures, page
from actograph.analysis.reports.figures import Bar, Figure
from actograph.contract.comparison import ConditionComparison, JobComparison
from actograph.contract.errors import InvalidDataset
from actograph.contract.resources import Job, JobResults


@dataclass(frozen=True)
class JobParts:
    """A job as the service answers it."""

    job: Job
    results: JobResults
    #: None with fewer than two conditions
    comparison: JobComparison | None = None
    #: generated tokens of each completed sample, by condition
    lengths: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass
class Report:
    """A page and its figures."""

    html: str
    figures: list[Figure]


def build(jobs: Sequence[JobParts], analyses: Sequence[Mapping[str, Any]], command: str) -> Report:
    """Build the report.

    Args:
        analyses: JSON objects that `actograph probe`, `compare`, `outliers` or `lens` printed.
        command: the command that made the report.

    Raises:
        InvalidDataset: an analysis has an unknown form.
    """
    drawn: list[Figure] = []
    sections = [_job_section(parts, drawn) for parts in jobs]
    known = [one for parts in jobs for one in _of_job(parts.results.analysis)]
    sections += [_analysis_section(number, one, drawn) for number, one in enumerate([*known, *analyses], 1)]
    sections.append(page.heading("How this was made") + page.code(command))
    return Report(page.page("Actograph report", sections), drawn)


def _of_job(summary: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Results of an analysis job; one of outliers or of a lens has several."""
    if summary is None:
        return []
    return list(summary["jobs"]) if summary.get("kind") in ("outliers", "lens") else [summary]


def _job_section(parts: JobParts, drawn: list[Figure]) -> str:
    job, results = parts.job, parts.results
    facts = [
        ("Model", job.model),
        ("Model identity (sha256)", job.identity_sha256),
        ("Kind", job.kind),
        ("Task", results.task),
        ("Status", str(job.status)),
        ("Samples", f"{job.progress.completed} of {job.progress.total}, {job.progress.failed} failed"),
        ("Created", datetime.fromtimestamp(job.created_at, UTC).strftime("%Y-%m-%d %H:%M UTC")),
        ("Tags", ", ".join(job.tags) or None),
    ]
    text = [page.heading(f"Job {job.id}"), page.table(("", ""), facts)]
    scores = {
        metric: [
            Bar(name, value, *_interval(found.metrics, metric))
            for name, found in results.conditions.items()
            if (value := found.metrics.get(metric)) is not None
        ]
        for metric in _metrics(results)
    }
    if scores:
        text += [page.heading("Scores", 3), _add(drawn, figures.bars(f"{job.id}-scores", "Scores", scores))]
        rows = [
            [name, metric, found.metrics.get(metric), found.metrics.get(_stderr(metric)), found.samples,
             found.failed, found.truncated]
            for name, found in results.conditions.items()
            for metric in scores
        ]  # fmt: skip
        text.append(page.paragraph("Error bars: 1.96 standard errors."))
        headers = ("Condition", "Metric", "Value", "Standard error", "Samples", "Failed", "Truncated")
        text.append(page.table(headers, rows))
    if parts.comparison is not None:
        text += [page.heading(f"Compared with {parts.comparison.baseline}", 3), _comparison(parts.comparison)]
    if any(parts.lengths.values()):
        shown = figures.histogram(f"{job.id}-lengths", "Lengths of completions", parts.lengths, "tokens")
        text += [page.heading("Lengths", 3), _add(drawn, shown)]
    text += [page.heading("Spec", 3), page.code(json.dumps(job.spec, indent=1, ensure_ascii=False))]
    return "\n".join(text)


def _comparison(found: JobComparison) -> str:
    def rows(name: str, one: ConditionComparison) -> list[list[Any]]:
        listed: list[tuple[str, Any]] = [*one.metrics.items(), ("generated_tokens", one.generated_tokens)]
        return [
            [name, metric, value.pairs, value.baseline, value.condition, value.difference,
             None if value.low is None else (value.low, value.high), getattr(value, "mcnemar_p", None)]
            for metric, value in listed
        ]  # fmt: skip

    headers = (
        "Condition", "Metric", "Pairs", "Baseline", "Value", "Difference", "Interval", "McNemar p",
    )  # fmt: skip
    return page.table(headers, [row for name, one in found.conditions.items() for row in rows(name, one)])


def _analysis_section(number: int, found: Mapping[str, Any], drawn: list[Figure]) -> str:
    hooks = found.get("hooks", {"features": found})
    try:
        if "outlier_features" in found:
            return _outliers(number, found, drawn)
        first = next(iter(hooks.values()))
        if "auroc" in first:
            return _probe(number, hooks, drawn)
        if "next_log_probability" in first:
            return _lens(number, found, drawn)
        if "p_value" in first:
            return _activations(hooks)
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError) as error:
        raise InvalidDataset(f"analysis {number} has no known form: {error!r}") from None
    raise InvalidDataset(f"analysis {number} is neither a probe, a comparison, outliers nor a lens")


def _probe(number: int, hooks: Mapping[str, Any], drawn: list[Figure]) -> str:
    def bar(hook: str, one: Mapping[str, Any]) -> Bar:
        low, high = one["auroc_interval"] or (None, None)
        return Bar(hook, one["auroc"], low, high)

    lines = {"probe": [bar(hook, one) for hook, one in hooks.items() if one["auroc"] is not None]}
    names = list(dict.fromkeys(name for one in hooks.values() for name in one["baselines"]))
    for name in names:
        known = [(hook, one["baselines"].get(name)) for hook, one in hooks.items()]
        lines[name] = [bar(hook, one) for hook, one in known if one and one["auroc"] is not None]
    rows = [
        [hook, which, one["auroc"], one["auroc_interval"], one["accuracy"], one["accuracy_interval"]]
        for hook, result in hooks.items()
        for which, one in (("probe", result), *result["baselines"].items())
    ]
    headers = ("Hook", "Features and labels", "AUROC", "Interval", "Accuracy", "Interval")
    shown = figures.curves(f"probe-{number}", "Probe and baselines by hook", lines, "AUROC")
    return page.heading("Probe") + _add(drawn, shown) + page.table(headers, rows)


def _activations(hooks: Mapping[str, Any]) -> str:
    columns = {
        "Pairs": "pairs", "First norm": "first_norm", "Second norm": "second_norm",
        "Difference": "difference_norm", "Cosine": "mean_cosine", "CKA": "cka",
        "Effect size": "effect_size", "p": "p_value",
    }  # fmt: skip
    rows = [[hook, *(one[key] for key in columns.values())] for hook, one in hooks.items()]
    return page.heading("Comparison of activations") + page.table(("Hook", *columns), rows)


def _outliers(number: int, found: Mapping[str, Any], drawn: list[Figure]) -> str:
    features: dict[int, list[int]] = {}
    for one in found["outlier_features"]:
        places = features.setdefault(int(one["feature"]), [])
        places += sorted({int(layer) for layer in one["layers"]} - set(places))
    text = page.heading("Outlier features")
    if not features:
        return text + page.paragraph("No feature met the thresholds.")
    shown = figures.outlier_map(f"outliers-{number}", "Layers of each outlier feature", features)
    rows = [[feature, ", ".join(map(str, sorted(layers)))] for feature, layers in sorted(features.items())]
    return text + _add(drawn, shown) + page.table(("Feature", "Layers"), rows)


def _lens(number: int, found: Mapping[str, Any], drawn: list[Figure]) -> str:
    hooks, measures = found["hooks"], ("next_is_top", "agreement")
    lines = {
        key: [Bar(hook, one[key]) for hook, one in hooks.items() if one[key] is not None] for key in measures
    }
    shown = figures.curves(f"lens-{number}", "Top tokens of the lens by hook", lines, "share of rows")
    columns = ("rows", "next_log_probability", *measures)
    text = page.heading(f"Logit lens of job {found['job_id']}") + _add(drawn, shown)
    text += page.table(
        ("Hook", "Rows", "Log probability of the next token", "Top is next", "Same top as the last hook"),
        [[hook, *(one[key] for key in columns)] for hook, one in hooks.items()],
    )
    if (split := found.get("attribution")) is not None:
        rows = [[name, one["mean"], one["mean_magnitude"]] for name, one in split["components"].items()]
        text += page.heading(f"Contributions to the logit of token {split['token']}", 3)
        text += page.table(("Component", "Mean", "Mean magnitude"), rows)
    return text


def _metrics(results: JobResults) -> list[str]:
    """Metrics with a value in some condition, without their standard errors."""
    names = dict.fromkeys(name for one in results.conditions.values() for name in one.metrics)
    return [
        name
        for name in names
        if "_stderr," not in name
        and any(one.metrics.get(name) is not None for one in results.conditions.values())
    ]


def _stderr(metric: str) -> str:
    name, _, rest = metric.partition(",")
    return f"{name}_stderr,{rest}"


def _interval(metrics: Mapping[str, float | None], metric: str) -> tuple[float | None, float | None]:
    value, error = metrics.get(metric), metrics.get(_stderr(metric))
    return (None, None) if value is None or error is None else (value - 1.96 * error, value + 1.96 * error)


def _add(drawn: list[Figure], figure: Figure) -> str:
    drawn.append(figure)
    return page.picture(figure)
