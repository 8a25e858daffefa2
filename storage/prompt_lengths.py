"""How many characters a token stands for, measured on the samples that a model has run."""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from storage.models import JobRow, SampleRow
from storage.ownership import of_everyone

#: so many samples of the newest jobs are looked at
MEASURED_SAMPLES = 200
_MEASURED_JOBS = 5


@of_everyone
def characters_per_token(session: Session, model: str) -> tuple[float, int] | None:
    """Characters of a prompt per token, and over how many samples; None before any has ended."""
    newest = (
        sa.select(JobRow.id)
        .where(JobRow.model == model, JobRow.completed > 0)
        .order_by(JobRow.created_at.desc())
        .limit(_MEASURED_JOBS)
    )
    sampled = (
        sa.select(sa.func.length(SampleRow.prompt).label("characters"), SampleRow.prompt_tokens)
        .where(
            SampleRow.job_id.in_(session.scalars(newest).all()),
            SampleRow.prompt.is_not(None),
            SampleRow.prompt_tokens > 0,
        )
        .limit(MEASURED_SAMPLES)
        .subquery()
    )
    statement = sa.select(
        sa.func.sum(sampled.c.characters), sa.func.sum(sampled.c.prompt_tokens), sa.func.count()
    )
    characters, tokens, count = session.execute(statement).one()
    return (float(characters) / float(tokens), int(count)) if count else None
