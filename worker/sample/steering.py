"""A job's interventions, resolved for a model: edits of the samples of each condition."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from pydantic import BaseModel
from sqlalchemy.orm import Session

from actograph.contract.errors import InvalidRequest, NotFound
from actograph.contract.interventions import (
    Intervention,
    StoredVector,
    check_stored,
    check_width,
    each,
    resolve_hook,
    vector_sha256,
)
from actograph.contract.models import ModelStructure
from actograph.contract.row_selection import Positions, TokenRange
from storage.sessions import vectors
from storage.sessions.manifest import AppliedIntervention
from worker.engine.engine import Engine
from worker.engine.requests import Edit, RowChooser
from worker.sample import choosers
from worker.sample.segments import Markup, markup_of


class _Condition(BaseModel):
    """A stored condition's name and interventions."""

    name: str
    interventions: list[Intervention] = []


@dataclass(frozen=True)
class Steering:
    """Edits and their records: the job's, then those of the sample's condition."""

    _edits: Mapping[str, tuple[Edit, ...]] = field(default_factory=dict)
    _records: Mapping[str, tuple[AppliedIntervention, ...]] = field(default_factory=dict)
    _positions: Mapping[str, tuple[Positions, ...]] = field(default_factory=dict)

    def edits(self, condition: str) -> tuple[Edit, ...]:
        return self._edits.get(condition, ())

    def edits_where(self, condition: str, chooser: Callable[[Positions], RowChooser]) -> tuple[Edit, ...]:
        """The same edits, with `chooser` selecting the tokens of their positions."""
        pairs = zip(self.edits(condition), self._positions.get(condition, ()), strict=True)
        return tuple(
            edit if positions == "all" else replace(edit, positions="all", chooser=chooser(positions))
            for edit, positions in pairs
        )

    def records(self, condition: str) -> tuple[AppliedIntervention, ...]:
        """Manifest entries of this condition."""
        return self._records.get(condition, ())


UNSTEERED = Steering()


def steering_of(
    session: Session,
    spec: Mapping[str, Any],
    model: str,
    engine: Engine,
    structure: ModelStructure | None = None,
) -> Steering:
    """Resolve the interventions of a stored job spec.

    Args:
        structure: table of hooks; None: the engine's.

    Raises:
        InvalidRequest: an unknown hook or one that cannot be changed, a vector of another width than its
            hook, or a stored vector that was deleted or is for another model.
    """
    job = [Intervention.model_validate(value) for value in spec.get("interventions") or ()]
    conditions = [_Condition.model_validate(value) for value in spec.get("conditions") or ()]
    if not job and not any(c.interventions for c in conditions):
        return UNSTEERED
    markup = markup_of(spec, engine.model.tokenizer)
    ready = [
        _ready(session, intervention, model, engine, table=structure, param=param, markup=markup)
        for param, intervention in each(job, conditions)
    ]
    own, rest = ready[: len(job)], ready[len(job) :]
    found: dict[str, Sequence[tuple[Edit, AppliedIntervention]]] = {} if conditions else {"": own}
    positions = {} if conditions else {"": tuple(one.positions for one in job)}
    for condition in conditions:
        count = len(condition.interventions)
        found[condition.name], rest = [*own, *rest[:count]], rest[count:]
        positions[condition.name] = tuple(one.positions for one in [*job, *condition.interventions])
    return Steering(
        {name: tuple(edit for edit, _ in pairs) for name, pairs in found.items()},
        {name: tuple(record for _, record in pairs) for name, pairs in found.items()},
        positions,
    )


def _ready(
    session: Session,
    intervention: Intervention,
    model: str,
    engine: Engine,
    *,
    table: ModelStructure | None,
    param: str,
    markup: Markup,
) -> tuple[Edit, AppliedIntervention]:
    hook = resolve_hook(intervention.hook, table or engine.structure, f"{param}.hook")
    numbers = intervention.vector
    if intervention.vector_id is not None:
        stored = _stored(session, intervention.vector_id, f"{param}.vector_id")
        check_stored(intervention.op, stored, model, f"{param}.vector_id")
        numbers = stored.vector
    if numbers is not None:
        source = "vector" if intervention.vector_id is None else "vector_id"
        check_width(hook, len(numbers), engine.width_of(hook), f"{param}.{source}")
    edit = Edit(
        hook=hook,
        op=intervention.op,
        coefficient=intervention.coefficient,
        vector=None if numbers is None else torch.tensor(numbers, dtype=torch.float32),
        **edited_tokens(intervention.positions, markup),
    )
    record = AppliedIntervention(
        hook=hook,
        op=intervention.op,
        coefficient=intervention.coefficient,
        positions=intervention.model_dump(mode="json")["positions"],
        vector_id=intervention.vector_id,
        vector_sha256=None if numbers is None else vector_sha256(numbers),
    )
    return edit, record


def edited_tokens(positions: Positions, markup: Markup) -> dict[str, Any]:
    """Fields of an `Edit` that select its tokens."""
    match positions:
        case TokenRange() | "all" | "prompt" | "generated" | "last_prompt":
            return {"positions": positions}
    return {"chooser": choosers.chooser(positions, markup)}


def _stored(session: Session, vector_id: str, param: str) -> StoredVector:
    try:
        return vectors.resource(vectors.get(session, vector_id))
    except NotFound:
        raise InvalidRequest(
            f"{param}: there is no vector {vector_id}; it was deleted after the job was submitted",
            param=param,
        ) from None
