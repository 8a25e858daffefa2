"""Differences of two sets of stored sessions at each hook, problem by problem."""

from collections.abc import Mapping
from typing import Any

from actograph.analysis.comparison import compare_rows, compare_sets
from actograph.contract.analyses import CompareSpec, ComparisonResult
from actograph.contract.errors import InvalidRequest
from storage.analyses import queries
from storage.results import labels
from worker.analysis.by_hook import Analysed, ByHook
from worker.analysis.run import AnalysisResults, AnalysisRun, left_out


def run(run: AnalysisRun, spec: CompareSpec) -> AnalysisResults:
    """Compare both sides.

    Raises:
        InvalidRequest: no session matches, or fewer than two problems are common.
        Interrupted: the analysis must end here.
    """
    with run.database.read() as session:
        sides = [
            queries.survey(session, query, spec.hooks, kind=spec.kind) for query in spec.queries.values()
        ]
        ids = [one for query in spec.queries.values() for one in queries.session_ids(session, query)]
    hooks = [hook for hook in sides[0].tensors if hook in sides[-1].tensors]
    if not hooks:
        raise InvalidRequest("the two sides have no hook in common", param="hooks")
    done = ByHook.resumed(run.saved(), ids)
    done.each(run, hooks, lambda hook: _compare(run, spec, done, hook))
    results = {hook: done.results[hook] for hook in hooks}
    model = sides[0].model if sides[0].model == sides[-1].model else None
    with run.database.read() as session:
        first, second = (value for _, value in queries.compared(session, spec, hooks[0]))
    return AnalysisResults(
        body=ComparisonResult(
            spec=spec.model_dump(mode="json"),
            sessions=len(done.read),
            hooks=results,
            first=first,
            second=second,
            **left_out(done.skipped),
        ),
        tables={
            "hooks": [
                {"hook": hook} | {name: value for name, value in one.items() if name != "features"}
                for hook, one in results.items()
            ],
            "features": [{"hook": hook} | line for hook, one in results.items() for line in one["features"]],
        },
        arrays=done.directions,
        vectors=done.vectors(spec, model),
        summary=_summary(results),
    )


def _summary(results: Mapping[str, Mapping[str, Any]]) -> str:
    pairs = max(one["pairs"] for one in results.values())
    on = f"{pairs} problems" if pairs else f"{max(one['unpaired'] for one in results.values())} groups"
    return f"{len(results)} hooks compared on {on}"


def _compare(run: AnalysisRun, spec: CompareSpec, done: ByHook, hook: str) -> Analysed:
    with run.database.read() as session:
        sides = [found for found, _ in queries.compared(session, spec, hook)]
        group_of = [labels.groups(session, found, spec.groups) for found in sides]
    rows, groups = [], []
    for found, of_session in zip(sides, group_of, strict=True):
        side, origins = queries.stacked(done.matrix(run, found, hook, spec))
        rows.append(side)
        groups.append([of_session[one.id] for one in origins])
    compare = compare_rows if spec.paired else compare_sets
    result = compare(*rows, *groups, permutations=spec.permutations, top=spec.top, seed=spec.seed)
    return result.as_json(), result.mean_difference
