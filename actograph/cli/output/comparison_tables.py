"""Comparisons of conditions as tables."""

from actograph.cli.output import tables
from actograph.contract.comparison import ActivationComparison, JobComparison, PairedDifference

HEADERS = ("Condition", "Metric", "Pairs", "Baseline", "Value", "Difference", "Interval", "McNemar p")
ACTIVATION_HEADERS = ("Hook", "Pairs", "Baseline", "Value", "Difference", "Cosine", "Consistency", "Vector")
_WORDS = ("Condition", "Metric", "Interval", "Hook", "Vector")


def render(found: JobComparison) -> str:
    """Render one row per condition and metric."""
    rows = []
    for name, condition in found.conditions.items():
        for key, metric in condition.metrics.items():
            p = "" if metric.mcnemar_p is None else f"{metric.mcnemar_p:.4g}"
            rows.append([name, key, *_figures(metric, 4), p])
        rows.append([name, "prompt_tokens", *_figures(condition.prompt_tokens, 1), ""])
        rows.append([name, "generated_tokens", *_figures(condition.generated_tokens, 1), ""])
    right = [header for header in HEADERS if header not in _WORDS]
    return f"baseline: {found.baseline}\n\n{tables.render(HEADERS, rows, right=right)}"


def _figures(found: PairedDifference, digits: int) -> list[str]:
    if found.baseline is None or found.condition is None or found.difference is None:
        return [str(found.pairs), "N/A", "N/A", "N/A", "N/A"]
    bounds = (
        "N/A"
        if found.low is None or found.high is None
        else f"{found.low:+.{digits}f} to {found.high:+.{digits}f}"
    )
    means = [
        f"{found.baseline:.{digits}f}",
        f"{found.condition:.{digits}f}",
        f"{found.difference:+.{digits}f}",
    ]
    return [str(found.pairs), *means, bounds]


def render_activations(found: ActivationComparison) -> str:
    """Render one row per hook: norms of the means and of their difference, and the stored vector."""
    rows = []
    for hook, difference in found.hooks.items():
        norms = [difference.baseline_norm, difference.condition_norm, difference.difference_norm]
        cosines = [difference.cosine_similarity, difference.consistency]
        rows.append(
            [
                hook,
                str(difference.pairs),
                *(f"{norm:.4g}" for norm in norms),
                *("N/A" if cosine is None else f"{cosine:.4f}" for cosine in cosines),
                difference.vector_id or "",
            ]
        )
    head = f"{found.condition} - {found.baseline}, positions: {found.positions}, {found.pairs} pairs"
    skipped = f" ({found.skipped} without them)" if found.skipped else ""
    right = [header for header in ACTIVATION_HEADERS if header not in _WORDS]
    return f"{head}{skipped}\n\n{tables.render(ACTIVATION_HEADERS, rows, right=right)}"
