"""/v1/jobs/{id}/comparison: conditions of a job on the same problems."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy.orm import Session

from actograph.contract.errors import InvalidRequest
from actograph.contract.interventions import NewVector
from actograph.contract.resources import ActivationComparison, ActivationComparisonRequest, JobComparison
from api.auth import READ, SUBMIT, Caller
from api.dependencies import JobId, ServicesDep, slow
from evals.statistics.paired import DEFAULT_LEVEL, DEFAULT_RESAMPLES
from storage.jobs import jobs
from storage.results import comparisons, matrix
from storage.sessions import sessions, vectors
from storage.sessions.pooled_activations import PairedActivations
from storage.sessions.reader import SessionReader
from storage.tables.models import JobRow

router = APIRouter(prefix="/v1/jobs", tags=["comparisons"], dependencies=[READ])

#: most bytes that one request reads, since the client waits for the answer
MAX_READ_BYTES = 32 << 30


@router.get(
    "/{job_id}/comparison", summary="Every condition against a baseline, per problem; also while the job runs"
)
@slow
def get_job_comparison(
    services: ServicesDep,
    job_id: JobId,
    *,
    baseline: Annotated[
        str | None, Query(max_length=64, description="A condition; default: the first one.")
    ] = None,
    level: Annotated[float, Query(gt=0, lt=1, description="Coverage of the intervals.")] = DEFAULT_LEVEL,
    resamples: Annotated[int, Query(ge=100, le=10_000)] = DEFAULT_RESAMPLES,
    seed: Annotated[int, Query(ge=0, le=2**31 - 1, description="Seed of the bootstrap.")] = 0,
) -> JobComparison:
    """Accuracy, McNemar's exact test, bootstrap intervals over problems, and lengths in tokens."""
    bootstrap = comparisons.Bootstrap(level=level, resamples=resamples, seed=seed)
    with services.database.read() as session:
        conditions = comparisons.read(session, jobs.get(session, job_id), baseline=baseline)
    return conditions.compare(bootstrap)


@router.post(
    "/{job_id}/comparison/activations",
    summary="Pooled activations of a condition minus the baseline's, per pair",
    dependencies=[SUBMIT],
)
@slow
def compare_job_activations(
    services: ServicesDep,
    job_id: JobId,
    wanted: ActivationComparisonRequest,
    by: Caller,
) -> ActivationComparison:
    """Rows of a session are averaged over the chosen tokens; a pair shares problem and epoch.

    `save_as` stores the mean differences as vectors for interventions.
    """
    with services.database.read() as session:
        row = jobs.get(session, job_id)
        names = comparisons.condition_names(row)
        baseline = comparisons.baseline_of(names, wanted.baseline)
        condition = comparisons.require_condition(names, wanted.condition, "condition")
        if baseline == condition:
            raise InvalidRequest(f"{condition} is the baseline itself", param="condition")
        chosen = _hooks(row, wanted.hooks)
        pairs = _pairs(session, job_id, baseline, condition)[: wanted.limit]
        _check_size(session, pairs, chosen, one_row=wanted.positions in ("last", "last_prompt"))
        model = row.model
    found = PairedActivations(wanted.positions)
    for first, second in pairs:
        found.add(SessionReader(services.store, first), SessionReader(services.store, second), chosen)
    about = {"job_id": job_id, "baseline": baseline, "condition": condition}
    kept = about | {"positions": wanted.model_dump_json(include={"positions"})}
    hooks, database = {}, services.database
    with database.read() if wanted.save_as is None else database.write() as session:
        for hook, direction in found.directions().items():
            vector_id = None
            if wanted.save_as is not None:
                new = NewVector(
                    name=wanted.save_as,
                    hook=hook,
                    model=model,
                    vector=[float(number) for number in direction.vector],
                    metadata={**kept, "pairs": str(direction.summary.pairs)},
                )
                vector_id = vectors.insert(session, new, owner=by).id
            hooks[hook] = direction.summary.model_copy(update={"vector_id": vector_id})
    return ActivationComparison(
        **about, positions=wanted.positions, pairs=found.pairs, skipped=found.skipped, hooks=hooks
    )


def _hooks(row: JobRow, wanted: Sequence[str]) -> list[str]:
    captured = row.hooks or []
    if not captured:
        raise InvalidRequest(f"job {row.id} captured no activations")
    chosen = []
    for name in wanted:
        hook = next((hook for hook in matrix.stored_names(row, name) if hook in captured), None)
        if hook is None:
            raise InvalidRequest(
                f"the job has no hook {name}; it captured {', '.join(captured[:8])}", param="hooks"
            )
        chosen.append(hook)
    return list(dict.fromkeys(chosen or captured))


def _pairs(session: Session, job_id: str, baseline: str, condition: str) -> list[tuple[str, str]]:
    """Sessions of both conditions for the same problem and epoch, first problems first."""
    finished = comparisons.finished_samples(session, job_id, [baseline, condition])
    seconds = finished[condition]
    pairs = [
        (first.session_id, seconds[twin].session_id or "")
        for twin, first in finished[baseline].items()
        if first.session_id and twin in seconds and seconds[twin].session_id
    ]
    if not pairs:
        raise InvalidRequest(f"{baseline} and {condition} have no problem with both sessions stored")
    return pairs


def _check_size(
    session: Session, pairs: Sequence[tuple[str, str]], chosen: Sequence[str], *, one_row: bool
) -> None:
    """Raises InvalidRequest if one answer would read too many bytes."""
    tensors = sessions.get(session, pairs[0][0]).hooks
    for hook in chosen:
        if hook not in tensors:
            raise InvalidRequest(f"no session has the tensor {hook}; capture it with its rows", param="hooks")
    # sessions of one job are similar in size
    rows = [max(1, tensors[hook]["shape"][0]) if one_row else 1 for hook in chosen]
    size = 2 * len(pairs) * sum(tensors[hook]["nbytes"] // n for hook, n in zip(chosen, rows, strict=True))
    if size > MAX_READ_BYTES:
        raise InvalidRequest(
            f"this reads about {size} bytes; one request may read {MAX_READ_BYTES}. Name fewer hooks, "
            "positions: last_prompt, or a limit",
            param="hooks",
        )
