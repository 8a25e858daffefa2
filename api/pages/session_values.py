"""Tokens and numbers of a session, as the viewer reads them."""

from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from actograph.contract.errors import InvalidRequest
from actograph.contract.readouts import is_readout
from actograph.tensor_files import json_rows
from api.auth import READ
from api.dependencies import Services, ServicesDep, SessionId, slow
from api.routes.sessions import reader_of
from storage import samples
from storage.analyses import stored
from storage.results import strongest_latents
from storage.results.strongest_latents import LatentInSession
from storage.sessions import row_values, selected_rows, sessions, vectors
from storage.sessions.manifest import SessionManifest
from storage.sessions.row_values import Reduce
from storage.sessions.selected_rows import Floats

router = APIRouter(prefix="/sessions/{session_id}", include_in_schema=False, dependencies=[READ])

#: numbers of one answer
MOST_VALUES = 1 << 20
#: channels and rows of a list
LISTED = 10
Place = Annotated[int, Query(ge=0, lt=2**31)]
Hook = Annotated[str, Field(max_length=256)]


@router.get("/tokens")
def get_tokens(services: ServicesDep, session_id: SessionId, start: Place, stop: Place) -> dict[str, Any]:
    """Read the tokens [start, stop), all segments, and where turns and their answers begin."""
    reader = reader_of(services, session_id)
    manifest = reader.manifest
    begins = {0, manifest.prompt_tokens}
    for turn in manifest.turns:
        begins |= {turn.start, turn.start + turn.prompt_tokens}
    return {
        "start": start,
        "ids": reader.token_ids()[start:stop],
        "texts": manifest.token_texts[start:stop],
        "segments": manifest.segments,
        "turns": sorted(begins),
    }


@router.get("/values")
@slow
def get_values(
    services: ServicesDep,
    session_id: SessionId,
    *,
    hook: Annotated[list[Hook], Query(min_length=1, max_length=64)],
    of: Literal["norm", "channel", "projection", "logprob"],
    start: Place,
    stop: Place,
    channel: Place = 0,
    vector: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """Compute a number for each hook and each of the tokens [start, stop); NaN for tokens without a row.

    The answer is little-endian float32 [hooks, tokens]. `vector` is a stored vector, or a session with the
    results of a probe. Log probabilities have no hook. Of a readout the number is its value.
    """
    reader = reader_of(services, session_id)
    tokens = range(reader.manifest.num_tokens)[start:stop]
    if len(tokens) * len(hook) > MOST_VALUES:
        raise InvalidRequest(f"more than {MOST_VALUES} numbers; ask for fewer tokens", param="stop")
    if of == "logprob":
        found = _log_probabilities(services, reader.manifest)[start:stop]
        return Response(found.astype("<f4").tobytes(), media_type="application/octet-stream")

    def reduction(name: str) -> Reduce:
        if is_readout(name):  # its only number, with its sign
            return row_values.channel(0)
        if of == "projection":
            return row_values.projection(_direction(services, vector, name))
        return row_values.channel(channel) if of == "channel" else row_values.norm

    rows = [row_values.values(reader, name, reduction(name), tokens) for name in hook]
    return Response(np.stack(rows).tobytes(), media_type="application/octet-stream")


@router.get("/latents")
@slow
def get_latents(services: ServicesDep, session_id: SessionId, hook: Hook) -> list[LatentInSession]:
    """List the latents of an SAE with the largest activations in the session, the largest first."""
    return strongest_latents.of_session(reader_of(services, session_id), hook, most=LISTED)


@router.get("/row")
@slow
def get_row(services: ServicesDep, session_id: SessionId, hook: Hook, token: Place) -> dict[str, Any] | None:
    """Read a row's norm, largest channels, nearest rows and stored logit lens; null if there is no row."""
    reader = reader_of(services, session_id)
    _, rows = selected_rows.select(reader, hook, [token])
    if not rows:
        return None
    row = selected_rows.read(reader, hook, rows[0], rows[0] + 1)[0].astype(np.float64)
    largest = np.argsort(-np.abs(row), kind="stable")[:LISTED]
    every = range(reader.manifest.num_tokens)
    along, norms = (
        row_values.values(reader, hook, reduce, every)
        for reduce in (row_values.projection(row), row_values.norm)
    )
    cosines = np.divide(along, norms, out=np.full(len(every), np.nan, "<f4"), where=norms > 0)
    cosines[token] = np.nan
    near = [int(place) for place in np.argsort(-cosines)[:LISTED] if not np.isnan(cosines[place])]
    texts = reader.manifest.token_texts or [str(one) for one in reader.token_ids()]
    with services.database.read() as session:
        lenses = stored.of_job(session, "lens", reader.manifest.job_id)
    listed = (stored.lens(services.store, one, session_id, hook, token) for one in lenses)
    return {
        "norm": json_rows(norms[token : token + 1])[0],
        "width": len(row),
        "channels": list(zip(largest.tolist(), json_rows(row[largest]), strict=True)),
        "nearest": [(place, texts[place], float(cosines[place])) for place in near],
        "lens": next(filter(None, listed), []),
    }


def _direction(services: Services, source: str, hook: str) -> Floats:
    """The numbers of a vector, or of the hook's probe. Raises NotFound."""
    with services.database.read() as session:
        if not source.startswith("ses_"):
            return np.asarray(vectors.numbers(vectors.get(session, source)))
        results = sessions.get(session, source)
    return stored.direction(services.store, results, hook)


def _log_probabilities(services: Services, manifest: SessionManifest) -> Floats:
    """The natural logarithm of each token's probability; NaN where the sample has none."""
    with services.database.read() as session:
        listed = samples.get(session, manifest.sample_id).logprobs or []
    # those of an echoed prompt come first
    first = 0 if len(listed) > manifest.generated_tokens else manifest.prompt_tokens
    found = np.full(manifest.num_tokens, np.nan)
    for place, one in enumerate(listed, start=first):
        found[place] = one.get("logprob", np.nan)
    return found
