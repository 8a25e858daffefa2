"""A job's interventions, resolved for a model: edits of the samples of each condition."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from sqlalchemy.orm import Session

from actograph.contract.errors import InvalidRequest, NotFound, UnknownHook
from actograph.contract.head_columns import columns_of
from actograph.contract.interventions import (
    Intervention,
    StoredVector,
    check_stored,
    check_width,
    each,
    of_columns,
    resolve_hook,
    vector_sha256,
)
from actograph.contract.models import ModelStructure
from actograph.contract.readouts import stored_name
from actograph.contract.row_selection import NamedPositions, Positions, TokenRange
from actograph.contract.saes import check_latent
from storage.artifacts.store import ArtifactStore
from storage.saes.decoder_rows import decoder_row
from storage.sessions import source_rows, vectors
from storage.sessions.manifest import AppliedIntervention
from worker.engine.messages import Edit, ReadoutLimit, TokenRule
from worker.sample.saes import stored_sae


class _StoredCondition(BaseModel):
    """A stored condition's name and interventions."""

    name: str
    interventions: list[Intervention] = []


@dataclass(frozen=True)
class Steering:
    """Edits and their records: the job's, then those of the sample's condition."""

    _edits: Mapping[str, tuple[Edit, ...]] = field(default_factory=dict)
    _records: Mapping[str, tuple[AppliedIntervention, ...]] = field(default_factory=dict)
    _positions: Mapping[str, tuple[Positions, ...]] = field(default_factory=dict)

    def edits(
        self, condition: str, rule: Callable[[Positions], TokenRule], *, is_first: bool
    ) -> tuple[Edit, ...]:
        """The edits of one turn of a sample.

        Args:
            rule: selects the tokens of positions that have no name in the engine. In a turn after the first
                one no positions but "all" have.
        """
        pairs = zip(self._edits.get(condition, ()), self._positions.get(condition, ()), strict=True)
        return tuple(
            edit
            if positions == "all" or (is_first and _engine_name(positions) is not None)
            else replace(edit, positions="all", rule=rule(positions))
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
    structure: ModelStructure,
    store: ArtifactStore,
) -> Steering:
    """Resolve the interventions of a stored job spec.

    Args:
        store: of the sessions whose rows interventions take.
        structure: of the loaded model, perhaps with other savepoints.

    Raises:
        InvalidRequest: an unknown hook or one that cannot be changed, a vector of another width than its
            hook, or a stored vector or session that was deleted, or a vector that is for another model.
    """
    job = [Intervention.model_validate(value) for value in spec.get("interventions") or ()]
    conditions = [_StoredCondition.model_validate(value) for value in spec.get("conditions") or ()]
    if not job and not any(c.interventions for c in conditions):
        return UNSTEERED
    named = list(each(job, conditions))
    rows = source_rows.read(store, named)
    ready = [
        _ready(session, intervention, model, structure, store, param=param, row=rows.get(param))
        for param, intervention in named
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
    structure: ModelStructure,
    store: ArtifactStore,
    *,
    param: str,
    row: NDArray[np.float32] | None,
) -> tuple[Edit, AppliedIntervention]:
    hook = resolve_hook(intervention.hook, structure, f"{param}.hook")
    numbers: Sequence[float] | None = intervention.vector
    if row is not None:
        numbers = row.tolist()
    if intervention.vector_id is not None:
        stored = _stored(session, intervention.vector_id, f"{param}.vector_id")
        check_stored(intervention, stored, model, f"{param}.vector_id")
        numbers = stored.vector
    if intervention.sae is not None and intervention.latent is not None:
        sae, file = stored_sae(session, intervention.sae, store, f"{param}.sae")
        check_latent(sae, intervention.latent, model, param)
        numbers = decoder_row(file, sae.config, intervention.latent).tolist()
    columns = columns_of(intervention.features, hook, structure, f"{param}.features")
    if numbers is not None:
        given = {"from": row, "vector_id": intervention.vector_id, "sae": intervention.sae}
        source = next((name for name, value in given.items() if value is not None), "vector")
        check_width(hook, len(numbers), width_of(structure, hook), f"{param}.{source}", columns)
        numbers = of_columns(numbers, columns, intervention, f"{param}.{source}")
    edit = Edit(
        hook=hook,
        op=intervention.edit_op,
        coefficient=intervention.coefficient,
        vector=None if numbers is None else np.array(numbers, dtype=np.float32),
        positions=_engine_name(intervention.positions) or "all",
        columns=columns,
        after=None
        if intervention.after is None
        else ReadoutLimit(
            name=stored_name(intervention.after.readout),
            above=intervention.after.above,
            below=intervention.after.below,
        ),
    )
    record = AppliedIntervention(
        hook=hook,
        op=intervention.op,
        coefficient=intervention.coefficient,
        scale_by=intervention.scale_by,
        positions=intervention.model_dump(mode="json")["positions"],
        vector_id=intervention.vector_id,
        source=intervention.source,
        sae=intervention.sae,
        latent=intervention.latent,
        features=intervention.features,
        vector_sha256=None if numbers is None else vector_sha256(numbers),
        after=intervention.after,
    )
    return edit, record


def _engine_name(positions: Positions) -> NamedPositions | TokenRange | None:
    """The engine's own name for these positions; None if a rule must select the tokens."""
    match positions:
        case TokenRange() | "all" | "prompt" | "generated" | "last_prompt":
            return positions
    return None


def width_of(structure: ModelStructure, hook: str) -> int:
    """Numbers per token at a hook or module location. Raises UnknownHook."""
    info = structure.tensor_of(hook)
    if info is None:
        raise UnknownHook(f"{hook}: this model has no such hook or module location", param="hooks")
    return info.width


def _stored(session: Session, vector_id: str, param: str) -> StoredVector:
    try:
        return vectors.resource(vectors.get(session, vector_id))
    except NotFound:
        raise InvalidRequest(
            f"{param}: there is no vector {vector_id}; it was deleted after the job was submitted",
            param=param,
        ) from None
