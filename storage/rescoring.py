"""Scoring the stored completions of an ended job anew.

Completions are read and judged page by page outside of any write transaction; what comes of it is
written in one, so that results change all at once, and only if the job is still as it was read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import Conflict, InvalidDataset, InvalidRequest
from actograph.contract.resources import JobStatus, SampleStatus
from actograph.contract.scorers import MAX_SCORERS, AnyScorer
from actograph.contract.specs import EvaluationSpec
from actograph.scoring.of_job import JobScoring, own_scorers
from storage import events, job_sums, jobs
from storage.database import Database
from storage.models import JobRow, SampleRow, SessionRow

PAGE = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Rescored:
    sample_id: str
    has_session: bool
    #: every score that the sample has now, the new ones first
    scores: dict[str, Any]
    correct: bool


def rescore(database: Database, job_id: str, scorers: Sequence[AnyScorer]) -> None:
    """Judge every completed sample of a job by `scorers`, of which the first gives the verdict.

    Scores under other keys are kept. The job's spec names the old and the new scorers from then on,
    so that samples run later have the same ones.

    Raises:
        NotFound: no such job.
        Conflict: it has not ended, or was begun anew meanwhile.
        InvalidRequest: it is no evaluation, or the scorers do not fit it.
        InvalidDataset: a row has no target that these scorers can use.
    """
    with database.read() as session:
        row = jobs.get(session, job_id)
        spec = _evaluation(row)
        state = _state(row)
    joined = _joined(scorers, own_scorers(spec))
    chosen = spec.model_copy(update={"scorers": list(scorers)})
    found: list[Rescored] = []
    position = -1
    while True:
        with database.read() as session:
            page = _page(session, job_id, position)
        if not page:
            break
        position = page[-1].position
        found += _judge(page, chosen)
    with database.write() as session:
        row = jobs.lock(session, job_id)
        if _state(row) != state:
            raise Conflict(f"job {job_id} was begun anew while it was scored; wait for its end")
        _write(session, found)
        job_sums.forget(session, job_id)
        row.spec = {**row.spec, "scorers": [scorer.model_dump(mode="json") for scorer in joined]}
        keys = [scorer.key for scorer in scorers]
        events.append(session, job_id, "job.rescored", {"scorers": keys, "samples": len(found)})


def _evaluation(row: JobRow) -> EvaluationSpec:
    if row.kind != "evaluation":
        raise InvalidRequest(f"job {row.id} is of kind {row.kind}; only evaluations are scored")
    if not JobStatus(row.status).is_terminal():
        raise Conflict(f"job {row.id} is {row.status}; wait for its end, or cancel it, and score it then")
    return EvaluationSpec.model_validate(row.spec)


def _state(row: JobRow) -> tuple[Any, ...]:
    """What changes when samples of an ended job are run again, or it is scored by someone else."""
    return row.status, row.finished_at, row.completed, row.failed, row.spec.get("scorers")


def _joined(new: Sequence[AnyScorer], old: Sequence[AnyScorer]) -> list[AnyScorer]:
    keys = {scorer.key for scorer in new}
    joined = [*new, *(scorer for scorer in old if scorer.key not in keys)]
    if len(joined) > MAX_SCORERS:
        raise InvalidRequest(
            f"the job would have {len(joined)} scorers with those it has; at most {MAX_SCORERS} are kept",
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
            SampleRow.session_id,
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


def _judge(page: Sequence[sa.Row[Any]], spec: EvaluationSpec) -> list[Rescored]:
    scoring = JobScoring(spec)
    judged = []
    for sample in page:
        try:
            scores = scoring.score(sample.input, sample.completion or "", sample.generated_tokens)
        except InvalidDataset as error:
            raise InvalidDataset(f"row {sample.sample_index}: {error.message}", param="scorers") from None
        verdict = next(iter(scores.values()))
        new = {key: score.model_dump() for key, score in scores.items()}
        judged.append(
            Rescored(
                sample_id=sample.id,
                has_session=sample.session_id is not None,
                scores=new | {key: value for key, value in (sample.scores or {}).items() if key not in new},
                correct=verdict.value == 1.0,
            )
        )
    return judged


def _write(session: Session, rescored: Sequence[Rescored]) -> None:
    connection = session.connection()
    if rescored:
        scores = sa.bindparam("new_scores", type_=SampleRow.scores.type)
        statement = sa.update(SampleRow).where(SampleRow.id == sa.bindparam("sample")).values(scores=scores)
        connection.execute(statement, [{"sample": r.sample_id, "new_scores": r.scores} for r in rescored])
    with_session = [r for r in rescored if r.has_session]
    if with_session:
        of_session = sa.update(SessionRow).where(SessionRow.sample_id == sa.bindparam("sample"))
        verdict = of_session.values(correct=sa.bindparam("verdict"))
        connection.execute(verdict, [{"sample": r.sample_id, "verdict": r.correct} for r in with_session])
