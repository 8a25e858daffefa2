"""The report of jobs: scores, comparisons, lengths, and the results of analyses."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from actograph.client import Client
from actograph.client.jobs import JobHandle
from actograph.contract.analyses import (
    ANALYSIS_KINDS,
    ComparisonResult,
    LensResult,
    OutliersResult,
    ProbesResult,
)
from actograph.contract.resources import ConditionComparison, ConditionResults, JobComparison, JobResults
from actograph.report import figures, page
from actograph.report.analysis_figures import figures_of
from actograph.report.figures import Bar, Figure

#: of a normal distribution, for intervals of 95 %
#: columns of a comparison
_COMPARISON = {
    "Pairs": "pairs", "First norm": "first_norm", "Second norm": "second_norm",
    "Norm of the difference": "difference_norm", "Cosine": "mean_cosine", "CKA": "cka",
    "Effect size": "effect_size", "p": "p_value",
}  # fmt: skip


@dataclass
class Report:
    """A page and its figures."""

    html: str
    figures: list[Figure]

    def write(self, path: Path) -> None:
        """Write the page, and each figure as SVG and PNG into `<name>-figures` beside it."""
        folder = path.with_name(f"{path.stem}-figures")
        folder.mkdir(parents=True, exist_ok=True)
        for one in self.figures:
            (folder / f"{one.name}.svg").write_bytes(one.svg)
            (folder / f"{one.name}.png").write_bytes(one.png)
        path.write_text(self.html, encoding="utf-8")


def of_jobs(client: Client, job_ids: Sequence[str], *, title: str, command: str) -> Report:
    """Build the report of jobs and analyses, in this order.

    Args:
        command: the command that made it.

    Raises:
        AnalysisFailed: an analysis has no results.
        PackageMissing: matplotlib is not installed.
    """
    drawn: list[Figure] = []
    sections = [_section(client, client.jobs.get(job_id), drawn) for job_id in job_ids]
    sections.append(page.heading("How this was made") + page.code(command))
    return Report(page.page(title, sections), drawn)


def _section(client: Client, job: JobHandle, drawn: list[Figure]) -> str:
    progress = job.progress
    facts = [
        ("Model", None if job.kind in ANALYSIS_KINDS else job.model),
        ("Model identity (sha256)", job.identity_sha256),
        ("Kind", job.kind),
        ("Status", f"{job.status}: {progress.completed} of {progress.total}, {progress.failed} failed"),
        ("Created", datetime.fromtimestamp(job.created_at, UTC).strftime("%Y-%m-%d %H:%M UTC")),
        ("Tags", ", ".join(job.tags)),
    ]
    text = [page.heading(f"Job {job.id}"), page.table(("", ""), [fact for fact in facts if fact[1]])]
    if job.kind in ANALYSIS_KINDS:
        text += _of_analysis(job.id, client.analysis.result(job.id).result, drawn)
    else:
        text += _of_samples(job, drawn)
    spec = json.dumps(job.spec, indent=1, ensure_ascii=False)
    return "\n".join([*text, page.heading("Spec", 3), page.code(spec)])


def _of_samples(job: JobHandle, drawn: list[Figure]) -> list[str]:
    results, text = job.results(), []
    if results.conditions:
        text += _scores(job.id, results, drawn)
    if len(results.conditions) > 1:
        text += _comparison(job.comparison())
    lengths: dict[str, list[float]] = {}
    for sample in job.samples(status="completed"):
        if sample.generated_tokens is not None:
            lengths.setdefault(sample.condition or "all", []).append(sample.generated_tokens)
    if any(any(found) for found in lengths.values()):
        shown = figures.histogram(
            f"{job.id}-lengths", f"Lengths of {sum(map(len, lengths.values()))} answers", lengths, "tokens"
        )
        text += [page.heading("Lengths", 3), _add(drawn, shown)]
    return text


def _scores(name: str, results: JobResults, drawn: list[Figure]) -> list[str]:
    metrics = dict.fromkeys(
        metric
        for one in results.conditions.values()
        for metric, value in one.metrics.items()
        if value is not None and "_stderr," not in metric
    )
    if not metrics:
        return []
    bars = {
        metric: [
            Bar(condition, value, *one.intervals.get(metric, (None, None)))
            for condition, one in results.conditions.items()
            if (value := one.metrics.get(metric)) is not None
        ]
        for metric in metrics
    }
    rows = [
        [
            condition,
            metric,
            one.metrics.get(metric),
            _error(one, metric),
            one.samples,
            one.failed,
            one.truncated,
        ]
        for condition, one in results.conditions.items()
        for metric in metrics
    ]
    headers = ("Condition", "Metric", "Value", "Standard error", "Samples", "Failed", "Truncated")
    return [
        page.heading("Scores", 3),
        _add(drawn, figures.bars(f"{name}-scores", f"Scores, with 95 % intervals: {_counts(results)}", bars)),
        page.table(headers, rows),
    ]


def _counts(results: JobResults) -> str:
    """`24 samples`, or `23 to 24 samples of each condition`."""
    counts = sorted({one.samples for one in results.conditions.values()})
    number = " to ".join(str(one) for one in dict.fromkeys((counts[0], counts[-1])))
    return f"{number} samples{' of each condition' if len(results.conditions) > 1 else ''}"


def _error(results: ConditionResults, metric: str) -> float | None:
    name, _, rest = metric.partition(",")
    return results.metrics.get(f"{name}_stderr,{rest}")


def _comparison(found: JobComparison) -> list[str]:
    def rows(condition: str, one: ConditionComparison) -> list[list[Any]]:
        pairs: list[tuple[str, Any]] = [*one.metrics.items(), ("generated_tokens", one.generated_tokens)]
        return [
            [condition, metric, value.pairs, value.baseline, value.condition, value.difference,
             None if value.low is None else (value.low, value.high), getattr(value, "mcnemar_p", None)]
            for metric, value in pairs
        ]  # fmt: skip

    headers = (
        "Condition", "Metric", "Pairs", "Baseline", "Value", "Difference",
        f"{100 * found.level:g} % interval", "McNemar p",
    )  # fmt: skip
    listed = [row for condition, one in found.conditions.items() for row in rows(condition, one)]
    return [page.heading(f"Compared with {found.baseline}", 3), page.table(headers, listed)]


def _of_analysis(name: str, found: Any, drawn: list[Figure]) -> list[str]:
    text = [page.paragraph(f"Of {found.sessions} sessions; {found.skipped_sessions} were left out.")]
    text += [_add(drawn, one) for one in figures_of(found, f"{name}-")]
    if isinstance(found, ProbesResult):
        return [*text, *map(page.paragraph, found.warnings), _probe(found.hooks)]
    if isinstance(found, OutliersResult):
        return [*text, _outliers(found)]
    if isinstance(found, LensResult):
        columns = {
            "Rows": "rows", "Log probability of the next token": "next_log_probability",
            "Next token on top": "next_is_top", "Agrees with the last hook": "agreement",
        }  # fmt: skip
        parts = [list(one.values()) for one in found.attribution]
        more = [page.table(("Component", "Mean", "Mean magnitude"), parts)] if parts else []
    else:
        assert isinstance(found, ComparisonResult)
        columns, more = _COMPARISON, []
    rows = [[hook, *(one[key] for key in columns.values())] for hook, one in found.hooks.items()]
    return [*text, page.table(("Hook", *columns), rows), *more]


def _probe(hooks: Mapping[str, Mapping[str, Any]]) -> str:
    measured = ("auroc", "auroc_interval", "accuracy", "accuracy_interval")
    rows = [
        [hook, kind, *(one[name] for name in measured), one.get("p_corrected")]
        for hook, result in hooks.items()
        for kind, one in (("probe", result), *result["baselines"].items())
    ]
    headers = ("Hook", "Features", "AUROC", "Interval", "Accuracy", "Interval", "p of the best")
    return page.table(headers, rows)


def _outliers(found: OutliersResult) -> str:
    if not found.outlier_features:
        return page.paragraph("No feature met the thresholds.")
    columns = ("feature", "points", "layers", "layer_share", "position_share", "largest")
    rows = [[_listed(one[key]) for key in columns] for one in found.outlier_features]
    headers = ("Feature", "Points", "Layers", "Share of layers", "Share of positions", "Largest")
    return page.table(headers, rows)


def _listed(value: Any) -> Any:
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def _add(drawn: list[Figure], figure: Figure) -> str:
    drawn.append(figure)
    return page.picture(figure)
