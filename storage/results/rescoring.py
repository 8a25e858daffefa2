"""Score the stored completions of an ended job again.

Completions are read and scored page by page outside of write transactions. New scores are staged beside the
old ones in slices, so other writers wait for one slice at most. One short transaction then puts the new
scoring into force: `SampleRow.scores` returns its scores from then on. Finally they replace the old scores,
in slices again. A rescoring that stops before it is in force changes nothing. `storage.upkeep.housekeeping`
completes one that stops later.
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import Conflict, InvalidDataset, InvalidRequest
from actograph.contract.resources import JobStatus, SampleStatus
from actograph.contract.scorers import MAX_SCORERS, AnyScorer
from actograph.contract.specs import EvaluationSpec
from actograph.scoring.of_job import JobScoring, own_scorers
from storage.index import events
from storage.index.database import Database
from storage.index.ids import new_scoring_id
from storage.jobs import jobs
from storage.tables.models import JobRow, SampleRow, SessionRow

#: samples that are read in one transaction, or written in one
PAGE = 500


def rescore(database: Database, job_id: str, scorers: Sequence[AnyScorer]) -> None:
    """Score every completed sample of a job by `scorers`. The first scorer gives the verdict.

    Scores under other keys are kept. The job's spec then names the old and the new scorers, so samples that
    run later have the same ones.

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
    chosen = spec.model_copy(update={"scorers": list(scorers)})
    found: list[dict[str, Any]] = []
    position = -1
    while True:
        with database.read() as session:
            page = _page(session, job_id, position)
        if not page:
            break
        position = page[-1].position
        found += _judge(page, chosen)
    scoring = _begin(database, job_id, state)
    for start in range(0, len(found), PAGE):
        with database.write() as session:
            _locked(session, job_id, state, scoring)
            _stage(session, scoring, found[start : start + PAGE])
    with database.write() as session:
        row = _locked(session, job_id, state, scoring)
        row.scoring, row.staged_scoring = scoring, None
        row.spec = {**row.spec, "scorers": [scorer.model_dump(mode="json") for scorer in joined]}
        keys = [scorer.key for scorer in scorers]
        events.append(session, job_id, "job.rescored", {"scorers": keys, "samples": len(found)})
    settle(database, job_id)


def unsettled(session: Session) -> Sequence[str]:
    """Jobs whose scores in force are still staged."""
    statement = sa.select(JobRow.id).where(JobRow.scoring.is_not(None), JobRow.deleted_at.is_(None))
    return session.scalars(statement).all()


def settle(database: Database, job_id: str) -> None:
    """Replace the stored scores by the staged ones that are in force, and set the sessions' verdicts.

    Several processes may do this at once. No results change.

    Raises:
        NotFound: no such job.
    """
    with database.read() as session:
        row = jobs.get(session, job_id)
    if row.scoring is None:
        return
    verdict_of = own_scorers(EvaluationSpec.model_validate(row.spec))[0].key
    position: int | None = -1
    while position is not None:
        with database.write() as session:
            current = jobs.lock(session, job_id)
            if current.scoring != row.scoring:
                return
            position = _settle_slice(session, current, position, verdict_of)


def _settle_slice(session: Session, row: JobRow, position: int, verdict_of: str) -> int | None:
    """Settle the next samples after `position`. Returns the last one's position, or None at the end."""
    statement = (
        sa.select(SampleRow.id, SampleRow.position, SampleRow.session_id, SampleRow.staged_scores)
        .where(
            SampleRow.job_id == row.id,
            SampleRow.position > position,
            SampleRow.scoring == row.scoring,
        )
        .order_by(SampleRow.position)
        .limit(PAGE)
    )
    page = session.execute(statement).all()
    if not page:
        row.scoring = None
        return None
    session.execute(
        sa.update(SampleRow)
        .where(SampleRow.id.in_([sample.id for sample in page]))
        .values(stored_scores=SampleRow.staged_scores, staged_scores=None, scoring=None)
        .execution_options(synchronize_session=False)
    )
    verdicts = [
        {"sample": sample.id, "verdict": sample.staged_scores[verdict_of]["value"] == 1.0}
        for sample in page
        if sample.session_id is not None
    ]
    if verdicts:
        of_session = sa.update(SessionRow).where(SessionRow.sample_id == sa.bindparam("sample"))
        session.connection().execute(of_session.values(correct=sa.bindparam("verdict")), verdicts)
    return int(page[-1].position)


def _evaluation(row: JobRow) -> EvaluationSpec:
    if row.kind != "evaluation":
        raise InvalidRequest(f"job {row.id} is of kind {row.kind}; only evaluations have scores")
    if not JobStatus(row.status).is_terminal():
        raise Conflict(f"job {row.id} is {row.status}; wait for its end, or cancel it, and then score it")
    return EvaluationSpec.model_validate(row.spec)


def _state(row: JobRow) -> tuple[Any, ...]:
    """Mark that changes if a job is retried or rescored."""
    return row.status, row.finished_at, row.completed, row.failed, row.spec.get("scorers")


def _begin(database: Database, job_id: str, state: tuple[Any, ...]) -> str:
    """Begin to stage a new scoring. Another request that is staging one fails. Returns the scoring's id."""
    scoring = new_scoring_id()
    while True:
        settle(database, job_id)  # the staged scores may be in force
        with database.write() as session:
            row = jobs.lock(session, job_id)
            if row.scoring is None:
                _require_unchanged(row, state)
                row.staged_scoring = scoring
                return scoring


def _locked(session: Session, job_id: str, state: tuple[Any, ...], scoring: str) -> JobRow:
    row = jobs.lock(session, job_id)
    _require_unchanged(row, state)
    if row.staged_scoring != scoring:
        raise Conflict(f"another request scores job {job_id}; wait for its end and try again")
    return row


def _require_unchanged(row: JobRow, state: tuple[Any, ...]) -> None:
    if _state(row) != state:
        raise Conflict(f"another request has retried or scored job {row.id} meanwhile; try again")


def _joined(new: Sequence[AnyScorer], old: Sequence[AnyScorer]) -> list[AnyScorer]:
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


def _judge(page: Sequence[sa.Row[Any]], spec: EvaluationSpec) -> list[dict[str, Any]]:
    """The id and all scores of each sample, the new ones first."""
    scoring = JobScoring(spec)
    judged = []
    for sample in page:
        try:
            scores = scoring.score(sample.input, sample.completion or "", sample.generated_tokens)
        except InvalidDataset as error:
            raise InvalidDataset(f"row {sample.sample_index}: {error.message}", param="scorers") from None
        new = {key: score.model_dump() for key, score in scores.items()}
        kept = {key: value for key, value in (sample.scores or {}).items() if key not in new}
        judged.append({"sample": sample.id, "all_scores": new | kept})
    return judged


def _stage(session: Session, scoring: str, judged: Sequence[dict[str, Any]]) -> None:
    scores = sa.bindparam("all_scores", type_=SampleRow.staged_scores.type)
    of_sample = sa.update(SampleRow).where(SampleRow.id == sa.bindparam("sample"))
    session.connection().execute(of_sample.values(scoring=scoring, staged_scores=scores), judged)
