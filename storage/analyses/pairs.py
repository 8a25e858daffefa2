"""Pairs of sessions of a patch job, and the samples that it makes of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import InvalidRequest, MixedIdentities
from actograph.contract.job_specs import PatchSpec
from actograph.contract.resources import TensorInfo
from storage.analyses import queries, replays
from storage.analyses.replays import ReplayedSession
from storage.results import labels
from storage.samples import NewSample
from storage.tables.models import SessionRow

#: fields of a pair's sample that name its sessions
CLEAN, CORRUPTED = "clean_session", "corrupted_session"


@dataclass(frozen=True, kw_only=True)
class SessionPair:
    """A clean session and its corrupted partner."""

    clean: ReplayedSession
    corrupted: ReplayedSession

    def side(self, name: str) -> ReplayedSession:
        """The session of a side by the side's name."""
        return self.clean if name == "clean" else self.corrupted


def found(session: Session, spec: PatchSpec) -> list[SessionPair]:
    """The pairs, in the order of the clean sessions. Sessions without a partner are left out.

    Raises:
        InvalidRequest: a side has no session, or several that cannot be told apart, or no two are a pair.
        MixedIdentities: the sessions were recorded with different models.
    """
    sides = {}
    for name, query in spec.queries.items():
        sessions = replays.found(session, queries.session_ids(session, query))
        if not sessions:
            raise InvalidRequest(queries.why_none(session, query), param=name)
        sides[name] = _by_key(sessions, spec.pair_by, name)
    clean, corrupted = sides["clean"], sides["corrupted"]
    pairs = [
        SessionPair(clean=one, corrupted=corrupted[key]) for key, one in clean.items() if key in corrupted
    ]
    if not pairs:
        raise InvalidRequest(
            f"no clean session has the same {spec.pair_by} as a corrupted one, such as "
            f"{next(iter(clean))} and {next(iter(corrupted))}; set pair_by to a column that "
            "both share",
            param="pair_by",
        )
    same = [one for one in pairs if one.clean.id == one.corrupted.id]
    if same:
        raise InvalidRequest(
            f"session {same[0].clean.id} is clean and corrupted; narrow both sides by tag, condition or job",
            param="corrupted",
        )
    _require_one_model(session, pairs)
    return pairs


def _by_key(sessions: Sequence[ReplayedSession], by: str, side: str) -> dict[Any, ReplayedSession]:
    column = labels.column_of(by)
    keyed: dict[Any, ReplayedSession] = {}
    for one in sessions:
        if not one.prompt_tokens:
            raise InvalidRequest(f"session {one.id} has results of an analysis and no tokens", param=side)
        key: Any = (one.sample_index, one.epoch)
        if column is not None:
            values = {**one.input, **(one.input.get("columns") or {})}
            if values.get(column) is None:
                raise InvalidRequest(f"session {one.id} has no column {column}", param="pair_by")
            key = json.dumps(values[column], sort_keys=True)
        if key in keyed:
            raise InvalidRequest(
                f"the {side} sessions {keyed[key].id} and {one.id} have the same {by}; narrow them by "
                "condition, tag or limit",
                param=side,
            )
        keyed[key] = one
    return keyed


def _require_one_model(session: Session, pairs: Sequence[SessionPair]) -> None:
    identities = {}
    for one in (pairs[0].clean, pairs[0].corrupted):  # those of a side have one, see `queries.session_ids`
        chosen = sa.select(SessionRow.identity_sha256).where(SessionRow.id == one.id)
        identities[one.id] = session.scalar(chosen)
    if len(set(identities.values())) > 1:
        raise MixedIdentities(
            f"sessions {' and '.join(identities)} were recorded with different models; choose sessions of one"
        )


def stored_tensors(session: Session, session_id: str) -> dict[str, TensorInfo]:
    """Tensors of a session by name."""
    stored = session.scalar(sa.select(SessionRow.hooks).where(SessionRow.id == session_id)) or {}
    return {name: TensorInfo.model_validate(info) for name, info in stored.items()}


def samples_of(pairs: Sequence[SessionPair]) -> list[NewSample]:
    """One sample for each pair, with the index of its clean session."""
    counts: dict[int, int] = {}
    made = []
    for one in pairs:
        index = one.clean.sample_index
        epoch = counts[index] = counts.get(index, -1) + 1
        made.append(
            NewSample(
                sample_index=index,
                condition="",
                epoch=epoch,
                input={CLEAN: one.clean.id, CORRUPTED: one.corrupted.id},
                seed=0,
            )
        )
    return made
