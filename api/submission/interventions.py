"""Checks of a job's interventions that can be made before a worker sees them."""

from sqlalchemy.orm import Session

from actograph.contract.chat.chat_job import ChatJobSpec
from actograph.contract.errors import InvalidRequest, NotFound
from actograph.contract.interventions import (
    Intervention,
    StoredVector,
    check_stored,
    check_width,
    each,
    resolve_hook,
)
from actograph.contract.resources import ModelStructure
from actograph.contract.specs import AnyJobSpec
from storage.sessions import vectors

Steered = AnyJobSpec | ChatJobSpec


def check(session: Session, spec: Steered, structure: ModelStructure | None) -> None:
    """Check hooks, stored vectors and widths; what needs a structure waits for it where it is not known.

    Raises:
        UnknownHook, InvalidRequest: the error names the field.
    """
    for param, intervention in each(spec.interventions, spec.conditions):
        stored = _stored(session, intervention, param)
        if stored is not None:
            check_stored(intervention.op, stored, spec.model, f"{param}.vector_id")
        if structure is None:
            continue
        hook = resolve_hook(intervention.hook, structure, f"{param}.hook")
        known = structure.tensor_of(hook)
        if known is None:
            continue  # a structure of an older version: the worker knows the width
        if stored is not None:
            check_width(hook, stored.width, known.width, f"{param}.vector_id")
        elif intervention.vector is not None:
            check_width(hook, len(intervention.vector), known.width, f"{param}.vector")


def require_vectors(session: Session, spec: Steered) -> None:
    """Hold off the deletion of the stored vectors. Raises InvalidRequest where one is not there."""
    named = {
        intervention.vector_id: (param, intervention)
        for param, intervention in each(spec.interventions, spec.conditions)
        if intervention.vector_id is not None
    }
    # in one order, as all locks
    for vector_id in sorted(named):
        param, intervention = named[vector_id]
        _stored(session, intervention, param, keep=True)


def _stored(
    session: Session, intervention: Intervention, param: str, *, keep: bool = False
) -> StoredVector | None:
    if intervention.vector_id is None:
        return None
    try:
        find = vectors.keep if keep else vectors.get
        return vectors.resource(find(session, intervention.vector_id))
    except NotFound:
        raise InvalidRequest(
            f"there is no vector {intervention.vector_id}; store it through /v1/interventions",
            param=f"{param}.vector_id",
        ) from None
