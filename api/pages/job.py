"""One job: progress, events, errors, accuracy by condition, paired comparison and its samples."""

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, Query, Request
from pydantic import ValidationError
from starlette.responses import Response

from actograph.contract.analyses import ANALYSIS_KINDS, RESULT_FILE, RESULTS
from actograph.contract.errors import ActographError
from actograph.contract.resources import ConditionResults, JobResults, Session
from api.auth import READ
from api.dependencies import JobId, Services, ServicesDep
from api.pages.live import digest
from api.pages.rendering import render
from api.routes.comparisons import get_job_comparison
from api.routes.jobs import get_job, get_job_results
from api.routes.patching import read as read_patching
from api.routes.sessions import get_session
from storage.index import events
from storage.samples import verdicts
from storage.sessions.writer import session_prefix

router = APIRouter(include_in_schema=False, dependencies=[READ])

#: samples in the grid of a page
GRID = 1000
EVENTS = 50
#: lines of each table of an analysis, and the largest result that a page reads
TABLE_LINES, LARGEST_RESULT = 100, 4 << 20
#: verdicts in words
_NAMES = {"no_answer": "no answer", "done": "completed", "leased": "running", "pending": "waiting"}


class MetricInterval(NamedTuple):
    """A metric of one condition with its 95 % interval, or None without one."""

    condition: str
    mean: float
    low: float | None
    high: float | None
    samples: int


@router.get("/jobs/{job_id}")
def show_job(
    request: Request, services: ServicesDep, job_id: JobId, first: Annotated[int, Query(ge=0)] = 0
) -> Response:
    state = digest(services, job_id)
    job = get_job(services, job_id)
    with services.database.read() as session:
        shown = verdicts.verdicts(session, job_id, first, GRID)
        groups = verdicts.error_groups(session, job_id)
        log = events.latest(session, job_id, EVENTS)
    results, trouble = _results(services, job_id)
    # the result of an analysis is the one session of its one sample
    results_in = shown[0].session_id if shown and job.kind in ANALYSIS_KINDS else None
    stored = get_session(services, results_in) if results_in else None
    tables, unread = _tables(services, job.kind, stored) if stored else ({}, "")
    figures: list[str] = []
    if job.kind == "patch" and job.progress.completed:
        tables, figures, unread = _patching(services, job_id)
    grid: dict[str, list[verdicts.Verdict]] = {}
    for one in shown:
        grid.setdefault(one.condition, []).append(one)
    values = {
        "state": state,
        "job": job,
        "is_over": job.status.is_terminal(),
        "trouble": trouble or unread,
        "results": results.conditions if results else {},
        "compared": results.compared if results else {},
        "metrics": intervals(results.conditions) if results else {},
        "conditions": [one["name"] for one in job.spec.get("conditions") or []],
        "grid": grid,
        "verdicts": {one.verdict: _NAMES.get(one.verdict, one.verdict) for one in shown},
        "has_more": len(shown) == GRID,
        "first": first,
        "step": GRID,
        "groups": groups,
        "events": log,
        "session": stored,
        "tables": tables,
        "figures": figures,
    }
    return render(request, "job.html", values)


Tables = Mapping[str, list[dict[str, Any]]]


def _tables(services: Services, kind: str, stored: Session) -> tuple[Tables, str]:
    """The first lines of each table of an analysis, and the reason if it cannot be read."""
    file = next((one for one in stored.files if one.name == RESULT_FILE), None)
    if file is None or file.bytes > LARGEST_RESULT:
        return {}, ""
    try:
        data = services.store.read(f"{session_prefix(stored.id)}/{RESULT_FILE}", 0, file.bytes)
        found = RESULTS[kind].model_validate_json(data).tables
    except ActographError as error:
        return {}, error.message
    except ValidationError:  # of another version
        return {}, ""
    return {title: lines[:TABLE_LINES] for title, lines in found.items()}, ""


def _patching(services: Services, job_id: str) -> tuple[Tables, list[str], str]:
    """Tables and figures of a patch job, and the reason if they cannot be read."""
    try:
        found, _ = read_patching(services, job_id)
    except ActographError as error:
        return {}, [], error.message
    tables = {title: lines[:TABLE_LINES] for title, lines in found.tables.items()}
    return tables, [f"patch_{point}" for point in found.points], ""


@router.get("/jobs/{job_id}/comparison")
async def show_comparison(
    request: Request, services: ServicesDep, job_id: JobId, baseline: str = ""
) -> Response:
    """A part of a job's page, which is read after the page."""
    try:
        found = await get_job_comparison(services=services, job_id=job_id, baseline=baseline or None)
    except ActographError as error:
        return render(request, "trouble.html", {"trouble": error.message})
    return render(request, "comparison.html", {"comparison": found})


def _results(services: Services, job_id: str) -> tuple[JobResults | None, str]:
    """The results, or why there are none."""
    try:
        return get_job_results(services, job_id), ""
    except ActographError as error:
        return None, error.message


def intervals(conditions: Mapping[str, ConditionResults]) -> dict[str, list[MetricInterval]]:
    """Metric -> its interval under each condition."""
    found: dict[str, list[MetricInterval]] = {}
    for name, one in conditions.items():
        for key, mean in one.metrics.items():
            metric = key.partition(",")[0]
            if mean is None or metric.endswith("_stderr"):
                continue
            low, high = one.intervals.get(key, (None, None))
            found.setdefault(key, []).append(MetricInterval(name, mean, low, high, one.samples))
    return found
