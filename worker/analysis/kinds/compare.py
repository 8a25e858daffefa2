"""Kind `compare`: activations of two jobs or conditions, problem by problem."""

from typing import Any

from actograph.analysis.comparisons.paired_rows import RowComparison, compare_rows
from actograph.contract.specs import CompareSpec
from worker.analysis.context import Context
from worker.analysis.results import OKABE_ITO, Results, figures, new_figure, table
from worker.analysis.session_rows import AboutSession, gather, store_vectors

_NUMBERS = (
    "pairs", "unpaired", "first_norm", "second_norm", "cosine_of_means", "mean_cosine", "cka",
    "difference_norm", "consistency", "effect_size", "p_value",
)  # fmt: skip


def run(context: Context) -> Results:
    """Gather the sessions' rows, and compare the two sides at each hook."""
    spec = context.spec
    assert isinstance(spec, CompareSpec)
    gathered = gather(context)
    sides = [[n for n, one in enumerate(gathered.about) if _side(spec, one) == side] for side in (0, 1)]
    problems = [one.problem for one in gathered.about]
    found: dict[str, RowComparison] = {}
    for hook, features in gathered.features.items():
        found[hook] = compare_rows(
            features[sides[0]],
            features[sides[1]],
            [problems[number] for number in sides[0]],
            [problems[number] for number in sides[1]],
            permutations=spec.permutations,
            top=spec.top,
            seed=spec.seed,
        )
        context.working()
    summary: dict[str, Any] = {
        "kind": "compare",
        "sides": list(spec.jobs) if len(spec.jobs) == 2 else list(spec.sessions.conditions or ()),
        "skipped": gathered.skipped,
        "hooks": {hook: one.as_json() for hook, one in found.items()},
    }
    if spec.store_as is not None:
        differences = {hook: one.mean_difference for hook, one in found.items()}
        summary["vectors"] = store_vectors(context, spec.store_as, differences)
    rows = [[hook, *(getattr(one, name) for name in _NUMBERS)] for hook, one in found.items()]
    files = {"comparison.csv": table(["hook", *_NUMBERS], rows)}
    return Results(summary=summary, files=files | figures("comparison", _figure(found)))


def _side(spec: CompareSpec, one: AboutSession) -> int:
    if len(spec.jobs) == 2:
        return spec.jobs.index(one.job_id)
    return list(spec.sessions.conditions or ()).index(one.condition)


def _figure(found: dict[str, RowComparison]) -> Any:
    """Cosine, CKA and effect size by hook."""
    figure = new_figure(8, 3.5)
    left, right = figure.subplots(1, 2)
    places = range(len(found))
    for number, name in enumerate(("mean_cosine", "cka")):
        values = [getattr(one, name) for one in found.values()]
        known = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
        left.plot(*zip(*known, strict=True), "os"[number] + "-", color=OKABE_ITO[number], label=name, ms=3)
    right.bar(places, [one.effect_size or 0 for one in found.values()], color=OKABE_ITO[2])
    for axes, title in ((left, "similarity"), (right, "effect size")):
        axes.set_xticks(places, list(found), rotation=45, ha="right")
        axes.set_title(title)
    left.legend(fontsize=7)
    return figure
