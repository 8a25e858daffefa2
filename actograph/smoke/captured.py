"""Checks of stored activations: counted, finite, not empty, and the same when read again."""

import hashlib
from typing import TYPE_CHECKING

import numpy as np

from actograph.smoke.failures import Kind, SmokeFailed

if TYPE_CHECKING:
    from actograph.client.blocking.resources.sessions import SessionHandle
    from actograph.contract.resources import ModelStructure


def check_session(session: "SessionHandle", structure: "ModelStructure") -> dict[str, str]:
    """Read all rows of all hooks of a session, and check them.

    Returns:
        hook -> sha256 of its rows.

    Raises:
        SmokeFailed: the session is of another model, or its activations are empty, incomplete or not finite.
    """
    if session.model != structure.model:
        raise SmokeFailed(
            Kind.MODEL, f"session {session.id} is of model {session.model!r}, not {structure.model!r}"
        )
    rows = session.prompt_tokens + session.generated_tokens - 1
    if not session.hooks:
        raise SmokeFailed(Kind.CAPTURE, f"session {session.id} has no activations")
    if session.rows != rows or rows < 1:
        raise SmokeFailed(Kind.CAPTURE, f"session {session.id} has {session.rows} rows, {rows} were expected")
    return {hook: _check_rows(session, hook, rows, structure) for hook in session.hooks}


def _check_rows(session: "SessionHandle", hook: str, rows: int, structure: "ModelStructure") -> str:
    tensor = session[hook]
    known = structure.tensor_of(hook)
    wanted = (rows, *tensor.shape[1:]) if known is None else (rows, known.width)
    if tuple(tensor.shape) != wanted or 0 in wanted:
        raise SmokeFailed(
            Kind.CAPTURE, f"{hook} of session {session.id} has the shape {list(tensor.shape)}, not {wanted}"
        )
    values = tensor.numpy()
    if values.shape != wanted:
        raise SmokeFailed(
            Kind.CAPTURE, f"{hook} of session {session.id}: {values.shape} was read, not {wanted}"
        )
    if not np.isfinite(values).all():
        raise SmokeFailed(Kind.CAPTURE, f"{hook} of session {session.id} has values that are not finite")
    if not values.any(axis=1).all():
        raise SmokeFailed(Kind.CAPTURE, f"{hook} of session {session.id} has rows of zeros only")
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()
