"""Differences of two sets of stored sessions at each hook, problem by problem."""

from actograph.analysis.comparison import compare_rows
from actograph.contract.analyses import CompareSpec, ComparisonResult, SessionQuery
from actograph.contract.errors import InvalidRequest
from actograph.tensor_files import Array
from storage.analyses import queries
from storage.results import labels
from worker.analysis.by_hook import Analysed, ByHook
from worker.analysis.run import Results, Run, left_out


def run(run: Run, spec: CompareSpec) -> Results:
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
    hooks = [hook for hook in sides[0].tensors if hook in sides[1].tensors]
    if not hooks:
        raise InvalidRequest("the two sides have no hook in common", param="hooks")
    done = ByHook.resumed(run.saved(), ids)
    done.each(run, hooks, lambda hook: _compare(run, spec, done, hook))
    results = {hook: done.results[hook] for hook in hooks}
    model = sides[0].model if sides[0].model == sides[1].model else None
    return Results(
        body=ComparisonResult(
            spec=spec.model_dump(mode="json"),
            sessions=len(done.read),
            hooks=results,
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
        summary=f"{len(results)} hooks compared on {max(one['pairs'] for one in results.values())} problems",
    )


def _compare(run: Run, spec: CompareSpec, done: ByHook, hook: str) -> Analysed:
    def side(query: SessionQuery) -> tuple[Array, list[int | str]]:
        with run.database.read() as session:
            found = queries.sources(session, query, hook)
            group_of = labels.groups(session, found, spec.groups)
        rows, origins = queries.stacked(done.matrix(run, found, hook, spec))
        return rows, [group_of[one.id] for one in origins]

    (first, first_problems), (second, second_problems) = side(spec.sessions), side(spec.other)
    found = compare_rows(
        first, second, first_problems, second_problems,
        permutations=spec.permutations, top=spec.top, seed=spec.seed,
    )  # fmt: skip
    return found.as_json(), found.mean_difference
