"""Score the stored completions of an ended job again.

Completions are scored outside of write transactions, which takes most of the time. One transaction then
stores all scores.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import Conflict, InvalidDataset, InvalidRequest
from actograph.contract.job_specs import EvaluationSpec
from actograph.contract.resources import JobStatus, SampleStatus
from actograph.contract.tasks import MAX_SCORERS, Scorer
from evals.scoring.scorers import Answer, ScorerSet, own_scorers
from evals.user_functions.functions import UserFunctions
from storage.index import events
from storage.index.database import Database
from storage.jobs import jobs
from storage.tables.models import JobRow, SampleRow, SessionRow

#: samples whose texts are in memory at once
PAGE = 500


def rescore(
    database: Database, job_id: str, scorers: Sequence[Scorer], own: UserFunctions | None = None
) -> None:
    """Score every completed sample of a job by `scorers`. The first scorer gives the verdict.

    Scores under other keys are kept. The job's spec then names the old and the new scorers, so samples that
    run later have the same ones. `own` are the operator's scorers.

    Raises:
        NotFound: no such job.
        Conflict: it has not ended, or another request has retried or scored it meanwhile.
        InvalidRequest: the job is no evaluation, or the scorers do not fit it.
        InvalidDataset: a row has no target that these scorers can use.
    """
    with database.read() as session:
        row = jobs.get(session, job_id)
        spec = _evaluation(row)
        state = _state(row)
    joined = _joined(scorers, own_scorers(spec))
    scoring = ScorerSet.of(spec.model_copy(update={"scorers": list(scorers)}), own)
    judged = list(_judge(database, job_id, scoring))
    with database.write() as session:
        row = jobs.lock(session, job_id)
        if _state(row) != state:
            raise Conflict(f"another request has retried or scored job {job_id} meanwhile; try again")
        _store(session, judged, scorers[0].key)
        row.spec = {**row.spec, "scorers": [scorer.model_dump(mode="json") for scorer in joined]}
        keys = [scorer.key for scorer in scorers]
        events.append(session, job_id, "job.rescored", {"scorers": keys, "samples": len(judged)})


def _judge(database: Database, job_id: str, scoring: ScorerSet) -> Iterator[dict[str, Any]]:
    """The scores of each completed sample."""
    position = -1
    while True:
        with database.read() as session:
            page = _page(session, job_id, position)
        if not page:
            return
        yield from (_judged(sample, scoring) for sample in page)
        position = page[-1].position


def _state(row: JobRow) -> tuple[Any, ...]:
    """Mark that changes if a job is retried or rescored."""
    return row.status, row.finished_at, row.completed, row.failed, row.spec.get("scorers")


def _evaluation(row: JobRow) -> EvaluationSpec:
    if row.kind != "evaluation":
        raise InvalidRequest(f"job {row.id} is of kind {row.kind}; only evaluations have scores")
    if not JobStatus(row.status).is_terminal():
        raise Conflict(f"job {row.id} is {row.status}; wait for its end, or cancel it, and then score it")
    return EvaluationSpec.model_validate(row.spec)


def _joined(new: Sequence[Scorer], old: Sequence[Scorer]) -> list[Scorer]:
    keys = {scorer.key for scorer in new}
    joined = [*new, *(scorer for scorer in old if scorer.key not in keys)]
    if len(joined) > MAX_SCORERS:
        raise InvalidRequest(
            f"the job would have {len(joined)} scorers with its own; at most {MAX_SCORERS} are possible",
            param="scorers",
        )
    return joined


def _page(session: Session, job_id: str, position: int) -> Sequence[sa.Row[Any]]:
    statement = (
        sa.select(
            SampleRow.id,
            SampleRow.position,
            SampleRow.sample_index,
            SampleRow.session_id,
            SampleRow.input,
            SampleRow.completion,
            SampleRow.generated_tokens,
            SampleRow.scores,
        )
        .where(
            SampleRow.job_id == job_id,
            SampleRow.status == SampleStatus.COMPLETED,
            SampleRow.position > position,
        )
        .order_by(SampleRow.position)
        .limit(PAGE)
    )
    return session.execute(statement).all()


def _judged(sample: sa.Row[Any], scoring: ScorerSet) -> dict[str, Any]:
    """All scores of a sample, the new ones first."""
    try:
        scores = scoring.score(
            Answer(
                sample.completion or "",
                sample.input["answer"],
                sample.generated_tokens,
                sample.input["question"],
            )
        )
    except InvalidDataset as error:
        raise InvalidDataset(f"row {sample.sample_index}: {error.message}", param="scorers") from None
    new = {key: score.model_dump() for key, score in scores.items()}
    kept = {key: value for key, value in (sample.scores or {}).items() if key not in new}
    return {"sample": sample.id, "session": sample.session_id, "new_scores": new | kept}


def _store(session: Session, judged: Sequence[dict[str, Any]], verdict_of: str) -> None:
    scores = sa.bindparam("new_scores", type_=SampleRow.scores.type)
    of_sample = sa.update(SampleRow).where(SampleRow.id == sa.bindparam("sample"))
    if judged:
        session.connection().execute(of_sample.values(scores=scores), judged)
    verdicts = [
        {"session": one["session"], "verdict": one["new_scores"][verdict_of]["value"] == 1.0}
        for one in judged
        if one["session"] is not None
    ]
    if verdicts:
        of_session = sa.update(SessionRow).where(SessionRow.id == sa.bindparam("session"))
        session.connection().execute(of_session.values(correct=sa.bindparam("verdict")), verdicts)
