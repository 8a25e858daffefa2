"""The sessions that a replay runs again, and the samples that it makes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.models import EngineChoice, ModelStructure, PinnedModel
from actograph.contract.resources import Score, SessionFile, ToolMessage, ToolUse
from storage import samples
from storage.index.ids import slices
from storage.jobs import jobs
from storage.samples import NewSample
from storage.sessions import sessions
from storage.sessions.manifest import MANIFEST_NAME
from storage.tables.models import JobRow, SampleRow, SessionRow

#: field of a replay's sample that names its session
SOURCE = "source_session"
#: fields of a sample's input that do not belong to its replay
_OF_THE_REQUEST = ("capture", "interventions", "expires_after", "live", "sample")
#: ids in one statement
_AT_ONCE = 500


@dataclass(frozen=True, kw_only=True)
class SourceSample:
    """The sample of a session: its result, and the interventions under which it ran.

    Attributes:
        manifest: the file, as the index has it.
        spec: the interventions and the condition of its job's spec.
    """

    manifest: SessionFile
    spec: Mapping[str, Any]
    condition: str
    prompt: str
    completion: str
    scores: Mapping[str, Score]
    correct: bool | None
    tools: tuple[ToolUse, Sequence[ToolMessage]] | None


@dataclass(frozen=True, kw_only=True)
class ReplayedSession:
    """A session of the index, with the input of its sample."""

    id: str
    sample_index: int
    condition: str
    epoch: int
    model: str
    prompt_tokens: int
    generated_tokens: int
    seed: int
    input: Mapping[str, Any]


def found(session: Session, ids: Sequence[str]) -> list[ReplayedSession]:
    """The sessions with these ids, in this order."""
    rows: dict[str, ReplayedSession] = {}
    columns = (
        SessionRow.id, SessionRow.sample_index, SessionRow.condition, SessionRow.epoch, SessionRow.model,
        SessionRow.prompt_tokens, SessionRow.generated_tokens, SampleRow.seed, SampleRow.input,
    )  # fmt: skip
    joined = sa.select(*columns).join(SampleRow, SampleRow.id == SessionRow.sample_id)
    for part in slices(ids, _AT_ONCE):
        for row in session.execute(joined.where(SessionRow.id.in_(part))):
            values = dict(zip((column.key for column in columns), row, strict=True))
            rows[row.id] = ReplayedSession(**values | {"seed": row.seed or 0})
    return [rows[one] for one in ids if one in rows]


def pin_of(session: Session, session_id: str) -> PinnedModel | None:
    """The model that a session was recorded with; None if it is unknown."""
    of_session = sa.select(JobRow).join(SessionRow, SessionRow.job_id == JobRow.id)
    return jobs.pin_of(session.scalars(of_session.where(SessionRow.id == session_id)).one())


def pin_beside(
    recorded: PinnedModel, structure: ModelStructure | None, engine: EngineChoice
) -> PinnedModel | None:
    """The model of sessions, if another one has its name now, or nothing is known of that.

    Args:
        structure: of the model with this name.
    """
    if structure is None or structure.identity is None:
        return recorded
    if structure.identity.sha256 == recorded.identity.sha256:
        return None
    current = jobs.pin_to(structure, engine)
    return current and current.model_copy(update={"identity": recorded.identity})


def samples_of(sources: Sequence[ReplayedSession]) -> list[NewSample]:
    """One sample for each session, with its index, condition and columns.

    Sessions of several jobs may have the same index, condition and epoch. Their samples are counted by
    epochs; the sessions that they store have the epochs of their sources.
    """
    counts: dict[tuple[int, str], int] = {}
    made = []
    for one in sources:
        epoch = counts[one.sample_index, one.condition] = (
            counts.get((one.sample_index, one.condition), -1) + 1
        )
        shown = {"sample_index": one.sample_index, "condition": one.condition, "epoch": one.epoch}
        kept = {name: value for name, value in one.input.items() if name not in _OF_THE_REQUEST}
        made.append(
            NewSample(
                sample_index=one.sample_index,
                condition=one.condition,
                epoch=epoch,
                input=kept | {SOURCE: one.id, "sample": shown},
                seed=one.seed,
            )
        )
    return made


def stored(session: Session, session_id: str) -> SourceSample | None:
    """The sample of a session; None if the session was deleted."""
    found = sessions.by_ids(session, [session_id])
    if not found:
        return None
    (row,) = found
    sample, job = samples.get(session, row.sample_id), jobs.get(session, row.job_id)
    spec = {
        # lines of batch files have interventions of their own
        "interventions": sample.input.get("interventions") or job.spec.get("interventions"),
        "conditions": [one for one in job.spec.get("conditions") or () if one["name"] == sample.condition],
    }
    tools = None
    if sample.tool_use is not None:
        messages = [ToolMessage.model_validate(one) for one in sample.messages or ()]
        tools = ToolUse.model_validate(sample.tool_use), messages
    return SourceSample(
        manifest=sessions.files_of(row)[MANIFEST_NAME],
        spec=spec,
        condition=sample.condition,
        prompt=sample.prompt or "",
        completion=sample.completion or "",
        scores={name: Score.model_validate(one) for name, one in (sample.scores or {}).items()},
        correct=row.correct,
        tools=tools,
    )
