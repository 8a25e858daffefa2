"""Conditions on sessions, for lists, totals and changes of many sessions."""

from typing import Any, TypeVar

import sqlalchemy as sa
from pydantic import BaseModel, ConfigDict, Field

from actograph.contract.analyses import ANALYSIS
from storage.index import pages
from storage.tables.models import SessionRow, SessionTagRow

S = TypeVar("S", bound="sa.Select[*tuple[Any, ...]]")


class SampleFilter(BaseModel):
    """Conditions that the sample of a session must meet; None means any value."""

    model_config = ConfigDict(frozen=True)

    condition: str | None = Field(None, max_length=64)
    sample_index: int | None = Field(None, ge=0, le=2**31 - 1)
    correct: bool | None = Field(None, description="Result of the task's first scorer.")
    tag: str | None = Field(None, max_length=64)


class SessionFilter(SampleFilter):
    """Conditions that a session must meet; None means any value."""

    id_prefix: str | None = Field(None, pattern="^ses_[0-9a-f]{1,32}$")
    job_id: str | None = Field(None, max_length=64)
    model: str | None = Field(None, max_length=1024)
    owner: str | None = Field(None, max_length=64, description="Owner of the job.")
    source_session: str | None = Field(None, max_length=64, description="Replays of this session.")
    pinned: bool | None = None
    analyses: bool | None = Field(
        None, description="Sessions of analyses, which hold results; or of models alone, which hold rows."
    )
    created_after: float | None = Field(None, allow_inf_nan=False, description="Unix seconds.")
    created_before: float | None = Field(None, allow_inf_nan=False, description="Unix seconds.")
    expires_before: float | None = Field(None, allow_inf_nan=False, description="Unix seconds.")

    @property
    def leads_with_tag(self) -> bool:
        """True if `narrow` starts from the table of tags, whose index has the order of the list."""
        return self.tag is not None and self.job_id is None

    def narrow(self, statement: S) -> S:
        """Restrict a statement to matching sessions."""
        where = self._where()
        if self.tag is not None:
            tagged = sa.and_(SessionTagRow.session_id == SessionRow.id, SessionTagRow.tag == self.tag)
            if self.leads_with_tag:
                statement = statement.join(SessionTagRow, tagged)
            else:
                where.append(sa.exists().where(tagged))
        return statement.where(*where)

    def _where(self) -> list[sa.ColumnElement[bool]]:
        where: list[sa.ColumnElement[bool]] = []
        if self.id_prefix is not None:
            where.append(pages.id_begins(SessionRow.id, self.id_prefix))
        for column, value in (
            (SessionRow.job_id, self.job_id),
            (SessionRow.model, self.model),
            (SessionRow.condition, self.condition),
            (SessionRow.sample_index, self.sample_index),
            (SessionRow.owner, self.owner),
            (SessionRow.source_session, self.source_session),
            (SessionRow.correct, self.correct),
            (SessionRow.pinned, self.pinned),
        ):
            if value is not None:
                where.append(column == sa.literal(value))
        if self.analyses is not None:
            of_analysis = SessionRow.model == sa.literal(ANALYSIS)
            where.append(of_analysis if self.analyses else ~of_analysis)
        if self.created_after is not None:
            where.append(SessionRow.created_at > self.created_after)
        if self.created_before is not None:
            where.append(SessionRow.created_at < self.created_before)
        if self.expires_before is not None:
            where.append(SessionRow.expires_at < self.expires_before)
        return where
