"""Rows of stored sessions as the vectors of interventions: patching."""

from collections.abc import Sequence

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from actograph.concurrency import each_of
from actograph.contract import hooks
from actograph.contract.errors import InvalidRequest, NotFound, StoreDamaged, UnknownHook
from actograph.contract.interventions import Intervention, RowSource
from storage.artifacts.store import ArtifactStore
from storage.index.ids import among
from storage.sessions import selected_rows
from storage.sessions.reader import SessionReader
from storage.tables.models import SessionRow

#: rows of sessions in the interventions of one job
MAX_ROWS = 4096
_READERS = 8
#: an intervention with the name of its field
Named = tuple[str, Intervention]


def require_sessions(session: Session, named: Sequence[Named]) -> None:
    """Check the number of rows, and that their sessions exist among those that the caller may see.

    Raises:
        InvalidRequest: there are too many rows, or no such session; the error names the field.
    """
    sources = [(param, one.source) for param, one in named if one.source is not None]
    if len(sources) > MAX_ROWS:
        raise InvalidRequest(
            f"{len(sources)} interventions take rows of sessions; one job may have {MAX_ROWS}. Split the job",
            param=f"{sources[MAX_ROWS][0]}.from",
        )
    ids = {source.session for _, source in sources}
    known = set(session.scalars(sa.select(SessionRow.id).where(among(session, SessionRow.id, ids))))
    for param, source in sources:
        if source.session not in known:
            raise InvalidRequest(f"there is no session {source.session}", param=f"{param}.from.session")


def read(store: ArtifactStore, named: Sequence[Named]) -> dict[str, NDArray[np.float32]]:
    """The vector [width] of each intervention that takes a row of a session, by the name of its field.

    16-bit floats become float32, which is exact.

    Raises:
        InvalidRequest: the session, its hook or the row of the token is not stored or damaged, or holds no
            numbers of one token; the error names the field.
    """
    wanted = [(param, one) for param, one in named if one.source is not None]
    readers = {
        one.source.session: SessionReader(store, one.source.session) for _, one in wanted if one.source
    }
    each = each_of(lambda pair: _read(readers, *pair), wanted, _READERS)
    return {param: row for (param, _), row in zip(wanted, each, strict=True)}


def _read(readers: dict[str, SessionReader], param: str, one: Intervention) -> NDArray[np.float32]:
    source = one.source
    assert source is not None
    reader, field = readers[source.session], f"{param}.from"
    try:
        stored = reader.manifest.capture.get("features")
        if one.features is not None and stored is not None and stored.get("heads") != one.features.heads:
            raise InvalidRequest(
                f"session {source.session} has the features {stored} alone; the intervention changes heads "
                f"{one.features.heads}. Take a session with all features, or with the same heads",
                param=f"{field}.session",
            )
        return _row(reader, source, source.hook or one.hook, field)
    except NotFound as error:
        raise InvalidRequest(f"{error.message}; it was deleted", param=f"{field}.session") from None
    except StoreDamaged as error:
        raise InvalidRequest(error.message, param=f"{field}.session") from None


def _row(reader: SessionReader, source: RowSource, hook: str, field: str) -> NDArray[np.float32]:
    manifest = reader.manifest
    name = manifest.resolved_hooks.get(hook, hook)
    if name not in manifest.tensors:
        try:
            (name,) = hooks.matching(manifest.tensors, [hook])
        except (UnknownHook, ValueError):  # none, or those of all layers
            fault = f"session {source.session}: {hooks.not_stored(hook, manifest.tensors)}"
            raise InvalidRequest(fault, param=f"{field}.hook") from None
    info = reader.tensor_info(name)
    if info.summary is not None:
        fault = f"{name} of session {source.session} is the {info.summary} over tokens, and has no row of one"
        raise InvalidRequest(fault, param=f"{field}.hook")
    if not info.dtype.startswith(("F", "BF")):
        fault = f"{name} holds {info.dtype} numbers, which no vector can have"
        raise InvalidRequest(fault, param=f"{field}.hook")
    token = source.row + manifest.prompt_tokens if source.row < 0 else source.row
    row = selected_rows.of_token(reader, name, token)
    if row is None:
        tokens = reader.tokens_of_rows(name)
        span = f"tokens {tokens[0]} to {tokens[-1]}" if len(tokens) else "no token"
        raise InvalidRequest(
            f"{name} of session {source.session} has no row of token {source.row}; its rows are of {span}",
            param=f"{field}.row",
        )
    vector: NDArray[np.float32] = row.astype(np.float32)
    return vector
