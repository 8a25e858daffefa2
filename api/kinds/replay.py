"""Replays: the stored tokens of sessions, one sample for each session."""

from dataclasses import replace
from functools import partial

from actograph.contract.errors import InvalidRequest
from actograph.contract.job_specs import ReplaySpec
from actograph.contract.models import ModelStructure, PinnedModel, short
from api import checks, session_queries
from api.dependencies import Services
from api.submission import MAX_SAMPLES, Submission, TokenCounts, outlook, with_defaults
from storage.analyses import queries, replays


def resolve(services: Services, body: ReplaySpec) -> ReplaySpec:
    """Set the full ids of jobs and sessions, the model of the sessions, and the defaults.

    Raises:
        UnknownModel
        InvalidRequest: several ids begin like one, a job or a session is unknown, or no session matches.
    """
    with services.database.read() as session:
        query = session_queries.with_full_ids(session, body.sessions)
        session_queries.require_named(session, query, "sessions")
        first = queries.earliest(session, query)
        if first is None:
            raise InvalidRequest(queries.why_none(session, query), param="sessions")
        _require_tokens(first.id, first.prompt_tokens)
        changes = {"sessions": query, "model": body.model or first.model}
    return with_defaults(services, body.model_copy(update=changes))


def check(services: Services, spec: ReplaySpec, owner: str) -> Submission[ReplaySpec]:
    """Choose the sessions, and compare the spec and the tokenizer of the sessions with the model.

    Raises:
        InvalidRequest: too many sessions match, one has no tokens, or the tokenizers differ.
        MixedIdentities: the sessions were recorded with different models.
        UnknownHook, ContextLengthExceeded: as `checks.passed`.
    """
    submission = checks.passed(outlook(services, spec, owner))
    with services.database.read() as session:
        ids = queries.session_ids(session, spec.sessions)
        if len(ids) > MAX_SAMPLES:
            raise InvalidRequest(
                f"{len(ids)} sessions match, and one job may have {MAX_SAMPLES} samples; set a limit",
                param="sessions",
            )
        sources = replays.found(session, ids)
        if not sources:
            raise InvalidRequest(queries.why_none(session, spec.sessions), param="sessions")
        recorded = replays.pin_of(session, sources[0].id)
    for one in sources:
        _require_tokens(one.id, one.prompt_tokens)
    pinned = None
    if recorded is not None and spec.model == sources[0].model:
        pinned = replays.pin_beside(recorded, submission.structure, spec.engine)
    elif recorded is not None and submission.structure is not None:
        _require_tokenizer(recorded, submission.structure, spec)
    prompt, generated = (
        sum(getattr(one, name) for one in sources) / len(sources)
        for name in ("prompt_tokens", "generated_tokens")
    )
    return replace(
        submission,
        samples=partial(replays.samples_of, sources),
        total=len(sources),
        pinned=pinned,
        counts=TokenCounts(
            prompt=round(prompt),
            generated=round(generated),
            longest=max(one.prompt_tokens + one.generated_tokens for one in sources),
        ),
    )


def expand(services: Services, submission: Submission[ReplaySpec]) -> Submission[ReplaySpec]:
    """The submission as it is: `check` has chosen its sessions."""
    return submission


def _require_tokens(session_id: str, count: int) -> None:
    """Raises InvalidRequest for the session of an analysis."""
    if not count:
        raise InvalidRequest(
            f"session {session_id} holds the results of an analysis, and no tokens", param="sessions"
        )


def _require_tokenizer(recorded: PinnedModel, structure: ModelStructure, spec: ReplaySpec) -> None:
    """Raises InvalidRequest if the tokens of the sessions mean something else to the model."""
    identity = structure.identity
    if identity is None or identity.tokenizer_sha256 == recorded.identity.tokenizer_sha256:
        return
    raise InvalidRequest(
        f"{spec.model} has another tokenizer ({short(identity.tokenizer_sha256)}) than the sessions "
        f"({short(recorded.identity.tokenizer_sha256)}), so their tokens are other texts to it; choose a "
        "model with the same tokenizer, or leave model out",
        param="model",
    )
