"""Log probabilities of a session's tokens, as stored with its sample."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from actograph.contract.errors import NotFound
from api.structures import Structures
from storage import samples
from storage.index.database import Database
from storage.sessions.reader import SessionReader
from storage.sessions.row_values import Values


def of_session(database: Database, structures: Structures, reader: SessionReader) -> Values | None:
    """The log probability of each token, NaN where unknown; None if the sample has none."""
    manifest = reader.manifest
    if len(manifest.turns) > 1:
        return None  # the list is about the last turn
    with database.read() as session:
        try:
            stored = samples.get(session, manifest.sample_id).logprobs
        except NotFound:
            return None
        if not stored:
            return None
        structure = structures.find(session, manifest.model)
    ends = None if structure is None else frozenset(structure.eos_token_ids)
    return placed(stored, reader.token_ids(), manifest.prompt_tokens, ends)


def placed(
    stored: Sequence[Mapping[str, Any]], ids: Sequence[int], prompt_tokens: int, ends: frozenset[int] | None
) -> Values | None:
    """Give stored log probabilities to their tokens. Returns None if that is ambiguous.

    A chat's list leaves out end tokens. A completion's list begins with the prompt if it was echoed.

    Args:
        ends: the end tokens of the model; None if unknown.
    """
    found = np.full(len(ids), np.nan, dtype="<f4")
    generated = range(prompt_tokens, len(ids))
    for places in (
        generated,
        range(len(ids)),
        [at for at in generated if ids[at] not in ends] if ends is not None else [],
    ):
        if len(places) == len(stored):
            for at, one in zip(places, stored, strict=True):
                if one.get("logprob") is not None:
                    found[at] = one["logprob"]
            return found
    return None
