"""Analyses of stored sessions: jobs of one sample, which need no model."""

from functools import partial

from actograph.contract.analyses import AnalysisSpec, CompareSpec, ProbeSpec
from actograph.contract.errors import InvalidRequest
from api import session_queries
from api.dependencies import Services
from api.submission import Submission, with_expiry
from storage.accounts import quotas
from storage.analyses import queries
from storage.samples import NewSample


def resolve(services: Services, body: AnalysisSpec) -> AnalysisSpec:
    """Set the defaults, and the full ids of jobs and sessions.

    Raises:
        InvalidRequest: several ids begin like one.
    """
    with services.database.read() as session:
        changes = {
            field: session_queries.with_full_ids(session, query) for field, query in body.queries.items()
        }
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
            session_queries.require_named(session, query, field)
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
