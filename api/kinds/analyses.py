"""Analyses of stored sessions: jobs of one sample, which need no model."""

from functools import partial

from actograph.contract.analyses import AnalysisSpec, CompareSpec, ProbeSpec
from actograph.contract.errors import InvalidRequest, NotFound
from api.dependencies import Services
from api.submission import Submission, with_expiry
from storage.accounts import quotas
from storage.analyses import queries
from storage.index.pages import full_id
from storage.jobs import jobs
from storage.samples import NewSample
from storage.sessions import sessions


def resolve(services: Services, body: AnalysisSpec) -> AnalysisSpec:
    """Set the defaults, and the full ids of jobs and sessions.

    Raises:
        InvalidRequest: several ids begin like one.
    """
    changes = {}
    with services.database.read() as session:
        for field, query in body.queries.items():
            ids = {
                name: [full_id(session, one, prefix) for one in getattr(query, name)]
                for name, prefix in (("jobs", "job"), ("ids", "ses"))
            }
            changes[field] = query.model_copy(update=ids)
    return with_expiry(services, body.model_copy(update=changes))


def check(services: Services, spec: AnalysisSpec, owner: str) -> Submission[AnalysisSpec]:
    """Find what the analysis reads, among the jobs that the caller may see.

    Raises:
        InvalidRequest: a job is unknown, no session matches, or the labels and groups allow no result.
        UnknownHook: the sessions have none of a hook.
    """
    surveys = []
    with services.database.read() as session:
        for field, query in spec.queries.items():
            for place, job_id in enumerate(query.jobs):
                try:
                    jobs.get(session, job_id)
                except NotFound:
                    raise InvalidRequest(f"there is no job {job_id}", param=f"{field}.jobs.{place}") from None
            known = {row.id for row in sessions.by_ids(session, query.ids)}
            for place, session_id in enumerate(query.ids):
                if session_id not in known:
                    raise InvalidRequest(f"there is no session {session_id}", param=f"{field}.ids.{place}")
            try:
                surveys.append(
                    queries.survey(session, query, spec.hooks, kind=spec.kind, with_stream=spec.attributes)
                )
            except InvalidRequest as error:
                if error.param == "sessions":
                    raise InvalidRequest(error.message, param=field) from None
                raise
        hooks = list(dict.fromkeys(name for one in surveys for name in one.tensors))
        if isinstance(spec, ProbeSpec):
            queries.check_probe(session, spec, hooks[0])
        elif isinstance(spec, CompareSpec):
            queries.check_compare(session, spec, hooks[0])
        return Submission(
            spec=spec,
            owner=owner,
            quotas=quotas.read(session, services.settings),
            surveys=tuple(surveys),
            hooks=hooks,
        )


def expand(services: Services, submission: Submission[AnalysisSpec]) -> Submission[AnalysisSpec]:
    """The one sample, whose input is the job's spec."""
    sample = NewSample(sample_index=0, condition="", epoch=0, input={}, seed=0)
    return submission.with_samples(partial(list, [sample]), 1)
