"""The sessions of a job in which a latent is most active, each with the token at which it is."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from actograph import tensor_files
from actograph.concurrency import each_of
from actograph.contract.errors import NotFound, StoreDamaged
from actograph.contract.saes import is_latents, part_names
from storage.artifacts.store import ArtifactStore
from storage.results.matrix import READERS, SessionSource
from storage.sessions.reader import SessionReader

#: texts before and behind a token that are shown
CONTEXT = 12


@dataclass(frozen=True, kw_only=True)
class StrongToken:
    """The token of a session at which a latent is most active.

    Attributes:
        tokens: of the session at which the latent is active at all.
        before, text, after: texts of the token and of its neighbours.
    """

    source: SessionSource
    token: int
    activation: float
    tokens: int
    before: str = ""
    text: str = ""
    after: str = ""


def strongest(
    store: ArtifactStore, found: Sequence[SessionSource], name: str, latent: int, *, most: int
) -> list[StrongToken]:
    """The sessions in which a latent is most active, the strongest first. Rows are read as they are stored.

    Args:
        name: of the latents, such as `sae:res-8`.
        most: sessions that are returned; those in which the latent is not active are left out.
    """

    def of_session(source: SessionSource) -> StrongToken | None:
        try:
            return _strongest(SessionReader(store, source.id), source, name, latent)
        except (NotFound, StoreDamaged):  # it was deleted meanwhile, or `store verify` reports it
            return None

    with_latents = [source for source in found if source.info is not None]
    tokens = [one for one in each_of(of_session, with_latents, READERS) if one is not None]
    return heapq.nlargest(most, tokens, key=lambda one: one.activation)


@dataclass(frozen=True, kw_only=True)
class LatentInSession:
    """A latent in one session.

    Attributes:
        activation: the largest one, which `token` has.
        tokens: at which it is active.
    """

    latent: int
    activation: float
    token: int
    tokens: int


def of_session(reader: SessionReader, name: str, *, most: int) -> list[LatentInSession]:
    """The latents of a session with the largest activations, the largest first. Rows are read as stored.

    Args:
        name: of the latents, such as `sae:res-8`.

    Raises:
        NotFound: the session has no such latents.
        StoreDamaged: the stored files are missing or damaged.
    """
    if not is_latents(name):
        raise NotFound(f"{name} is no name of latents, such as sae:res-8", param="hook")
    count = reader.tensor_info(name).shape[0]
    slices = (reader.rows(part, 0, count) for part in part_names(name))
    numbers, values = (tensor_files.value_array(one.dtype, one.shape, one.data) for one in slices)
    rows, columns = np.nonzero((numbers >= 0) & (values > 0))
    latents, activations = numbers[rows, columns], values[rows, columns]
    order = np.lexsort((latents, -activations))
    active, first, tokens = np.unique(latents[order], return_index=True, return_counts=True)
    of_rows = reader.tokens_of_rows(name)
    found = []
    for place in np.argsort(first, kind="stable")[:most]:  # where it is largest, the largest first
        at = order[first[place]]
        found.append(
            LatentInSession(
                latent=int(active[place]),
                activation=float(activations[at]),
                token=int(of_rows[rows[at]]),
                tokens=int(tokens[place]),
            )
        )
    return found


def _strongest(reader: SessionReader, source: SessionSource, name: str, latent: int) -> StrongToken | None:
    count = reader.tensor_info(name).shape[0]
    slices = (reader.rows(part, 0, count) for part in part_names(name))
    numbers, values = (tensor_files.value_array(one.dtype, one.shape, one.data) for one in slices)
    activations = np.where(numbers == latent, values, 0).sum(axis=1)
    if not activations.any():
        return None
    row = int(activations.argmax())
    token, texts = reader.tokens_of_rows(name)[row], reader.manifest.token_texts
    return StrongToken(
        source=source,
        token=token,
        activation=float(activations[row]),
        tokens=int(np.count_nonzero(activations)),
        before="".join(texts[max(0, token - CONTEXT) : token]),
        text="".join(texts[token : token + 1]),
        after="".join(texts[token + 1 : token + 1 + CONTEXT]),
    )
