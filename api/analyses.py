"""Analyses of stored sessions as jobs: check, estimate, insert."""

from collections.abc import Iterator

from sqlalchemy.orm import Session

from actograph.contract.analyses.specs import ANALYSIS, AnalysisSpec, CompareSpec, LensSpec, SessionQuery
from actograph.contract.errors import InvalidRequest, NotFound
from actograph.contract.operations import Estimate
from actograph.contract.specs import ExpiresAfter
from api.dependencies import Services
from storage import samples
from storage.analyses import queries
from storage.analyses.queries import Survey
from storage.jobs import jobs
from storage.jobs.request_keys import RequestKey, first_wins
from storage.samples import NewSample
from storage.tables.models import JobRow


def submit(services: Services, spec: AnalysisSpec, owner: str, *, key: RequestKey | None = None) -> JobRow:
    """Check an analysis, insert its job and wake a worker.

    Raises:
        InvalidRequest: a job is unknown, or no session matches.
        UnknownHook: the sessions have none of a hook.
        IdempotencyInFlight: another request with this key was faster.
    """
    after = services.settings.expire_after_seconds
    if spec.expires_after is None and after:
        spec = spec.model_copy(update={"expires_after": ExpiresAfter(seconds=after)})
    sample = NewSample(sample_index=0, condition="", epoch=0, input={}, seed=0)
    with services.database.read() as session:
        hooks = list(dict.fromkeys(name for one in _check(session, spec) for name in one.tensors))
    with services.database.write() as session:
        with first_wins():
            row = jobs.create(session, spec, total=1, hooks=hooks, owner=owner, request_key=key)
        samples.insert(session, row.id, [sample])
    services.broker.wake(ANALYSIS)
    return row


def plan(services: Services, spec: AnalysisSpec) -> Estimate:
    """Estimate what an analysis reads. Raises the errors of `submit`."""
    with services.database.read() as session:
        found = list(_check(session, spec))
    rows, size = sum(one.rows for one in found), sum(one.bytes for one in found)
    return Estimate(
        model=ANALYSIS,
        samples=1,
        hooks=list(dict.fromkeys(name for one in found for name in one.tensors)),
        generated_tokens=0,
        rows_to_read=rows,
        bytes_to_read=size,
        fits=True,
        assumptions=[
            f"{sum(one.sessions for one in found)} sessions have the hooks of the first one, at every token",
            "the analysis runs on a CPU, beside the workers that hold a model",
        ],
    )


def _check(session: Session, spec: AnalysisSpec) -> Iterator[Survey]:
    """Find what an analysis reads, among the jobs that the caller may see."""
    sides: list[tuple[str, SessionQuery]] = [("sessions", spec.sessions)]
    if isinstance(spec, CompareSpec):
        sides.append(("other", spec.other))
    attributes = isinstance(spec, LensSpec) and spec.token is not None
    for field, query in sides:
        for place, job_id in enumerate(query.jobs):
            try:
                jobs.get(session, job_id)
            except NotFound:
                raise InvalidRequest(f"there is no job {job_id}", param=f"{field}.jobs.{place}") from None
        try:
            yield queries.survey(session, query, spec.hooks, kind=spec.kind, with_stream=attributes)
        except InvalidRequest as error:
            if error.param == "sessions":
                raise InvalidRequest(error.message, param=field) from None
            raise
