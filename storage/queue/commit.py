"""Commits: results and failures of samples, written under their leases."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract import resources
from actograph.contract.errors import ActographError, LeaseLost
from actograph.contract.resources import SampleStatus, ToolMessage, ToolUse
from storage.index.database import changed, now
from storage.queue.leases import LeasedSample, ours
from storage.tables.models import SampleRow


@dataclass(frozen=True, kw_only=True)
class SampleResult:
    """Result of a completed sample."""

    prompt: str
    completion: str
    finish_reason: str
    prompt_tokens: int
    generated_tokens: int
    scores: Mapping[str, resources.Score]
    session_id: str | None
    tool_use: ToolUse | None = None
    messages: Sequence[ToolMessage] = ()
    logprobs: Sequence[Mapping[str, Any]] | None = None


def complete(session: Session, lease: LeasedSample, result: SampleResult) -> None:
    """Store a result under the lease.

    Raises:
        LeaseLost: another worker has claimed the sample since, or the job was deleted.
    """
    moved = session.execute(
        sa.update(SampleRow)
        .where(*ours(lease))
        .values(
            status=SampleStatus.COMPLETED,
            prompt=result.prompt,
            completion=result.completion,
            finish_reason=result.finish_reason,
            prompt_tokens=result.prompt_tokens,
            generated_tokens=result.generated_tokens,
            scores={key: score.model_dump() for key, score in result.scores.items()},
            tool_use=result.tool_use.model_dump() if result.tool_use else None,
            messages=[message.model_dump() for message in result.messages] or None,
            logprobs=None if result.logprobs is None else list(result.logprobs),
            session_id=result.session_id,
            error=None,
            finished_at=now(session),
        )
    )
    if not changed(moved):
        raise LeaseLost(f"sample {lease.id}: lease token {lease.token} is no longer valid")


def fail(session: Session, lease: LeasedSample, error: ActographError, prompt: str | None = None) -> None:
    """Store the reason of a failed sample.

    Raises:
        LeaseLost: another worker has claimed the sample since, or the job was deleted.
    """
    moved = session.execute(
        sa.update(SampleRow)
        .where(*ours(lease))
        .values(status=SampleStatus.FAILED, error=error.as_record(), prompt=prompt, finished_at=now(session))
    )
    if not changed(moved):
        raise LeaseLost(f"sample {lease.id}: lease token {lease.token} is no longer valid")


def committed(session: Session, leases: Sequence[LeasedSample]) -> set[str]:
    """Samples that were committed under these leases. The answer to their commit may have been lost."""
    tokens = {lease.id: lease.token for lease in leases}
    statement = sa.select(SampleRow.id, SampleRow.lease_token).where(
        SampleRow.id.in_(tokens), SampleRow.status.in_((SampleStatus.COMPLETED, SampleStatus.FAILED))
    )
    return {row.id for row in session.execute(statement) if row.lease_token == tokens[row.id]}
