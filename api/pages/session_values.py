"""Tokens and numbers of a session, as the viewer reads them."""

from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from actograph.contract.errors import InvalidRequest
from actograph.tensor_files import json_rows
from api.auth import READ
from api.dependencies import Services, ServicesDep, SessionId, slow
from api.routes.sessions import reader_of
from storage import samples
from storage.analyses import stored
from storage.sessions import row_values, selected_rows, sessions, vectors
from storage.sessions.reader import SessionReader
from storage.sessions.row_values import Reduce
from storage.sessions.selected_rows import Floats

router = APIRouter(prefix="/sessions/{session_id}", include_in_schema=False, dependencies=[READ])

#: numbers of one answer
MOST_VALUES = 1 << 20
#: channels and rows of a list
LISTED = 10
Place = Annotated[int, Field(ge=0, lt=2**31)]


class ValuesQuery(BaseModel):
    """The number to compute for each of the tokens [start, stop), for each hook.

    Attributes:
        vector: for `projection`: a stored vector, or a session with the results of a probe.
    """

    of: Literal["norm", "channel", "projection", "logprob"] = "norm"
    hook: list[str] = Field(min_length=1, max_length=64)
    start: Place
    stop: Place
    channel: Place = 0
    vector: str = Field("", max_length=64)


@router.get("/tokens")
def get_tokens(services: ServicesDep, session_id: SessionId, start: Place, stop: Place) -> JSONResponse:
    """Read ids and texts of the tokens [start, stop), all segments, and the first token of each turn."""
    reader = reader_of(services, session_id)
    manifest = reader.manifest
    turns = {0, manifest.prompt_tokens}
    for turn in manifest.turns:
        turns |= {turn.start, turn.start + turn.prompt_tokens}
    found = {
        "start": start,
        "ids": reader.token_ids()[start:stop],
        "texts": manifest.token_texts[start:stop],
        "segments": [one.model_dump() for one in manifest.segments],
        "turns": sorted(turns),
    }
    return JSONResponse(found, headers={"Cache-Control": "no-store"})


@router.get("/values", response_class=Response)
@slow
def get_values(
    services: ServicesDep, session_id: SessionId, wanted: Annotated[ValuesQuery, Query()]
) -> Response:
    """Compute little-endian float32 [hooks, tokens]; NaN for tokens without a row."""
    reader = reader_of(services, session_id)
    tokens = range(reader.manifest.num_tokens)[wanted.start : wanted.stop]
    if len(tokens) * len(wanted.hook) > MOST_VALUES:
        raise InvalidRequest(f"more than {MOST_VALUES} numbers; ask for fewer tokens", param="stop")
    if wanted.of == "logprob":
        found = [_log_probabilities(services, reader)[wanted.start : wanted.stop]]
    else:
        found = [
            row_values.values(reader, hook, _reduction(services, hook, wanted), tokens)
            for hook in wanted.hook
        ]
    body = np.stack(found).astype("<f4").tobytes()
    return Response(body, headers={"Cache-Control": "no-store"}, media_type="application/octet-stream")


@router.get("/row")
@slow
def get_row(services: ServicesDep, session_id: SessionId, hook: str, token: Place) -> dict[str, Any] | None:
    """Read norm, largest channels, nearest rows and stored logit lens of a token's row; null without a row."""
    reader = reader_of(services, session_id)
    _, rows = selected_rows.select(reader, hook, [token])
    if not rows:
        return None
    row = selected_rows.read(reader, hook, rows[0], rows[0] + 1)[0].astype(np.float64)
    every = range(reader.manifest.num_tokens)
    cosines = row_values.values(reader, hook, row_values.cosine(row), every)
    cosines[token] = np.nan
    near = [int(one) for one in np.argsort(-cosines)[:LISTED] if not np.isnan(cosines[one])]
    largest = np.argsort(-np.abs(row), kind="stable")[:LISTED]
    texts = reader.manifest.token_texts or [str(one) for one in reader.token_ids()]
    return {
        "norm": json_rows(row_values.norm(row[None]))[0],
        "width": len(row),
        "channels": list(zip(largest.tolist(), json_rows(row[largest]), strict=True)),
        "nearest": [(one, texts[one], float(cosines[one])) for one in near],
        "lens": _lens(services, session_id, hook, token),
    }


def _lens(services: Services, session_id: str, hook: str, token: int) -> list[tuple[str, float]]:
    """Next tokens of a row and their log probabilities; none if no stored lens of the job lists the row."""
    with services.database.read() as session:
        results = stored.of_job(session, "lens", sessions.get(session, session_id).job_id)
    found = (stored.lens(services.store, one, session_id, hook, token) for one in results)
    return next((lines for lines in found if lines), [])


def _reduction(services: Services, hook: str, wanted: ValuesQuery) -> Reduce:
    if wanted.of == "channel":
        return row_values.channel(wanted.channel)
    if wanted.of == "projection":
        return row_values.projection(_direction(services, wanted.vector, hook))
    return row_values.norm


def _direction(services: Services, source: str, hook: str) -> Floats:
    """The numbers of a vector, or of the hook's probe; empty without one. Raises NotFound."""
    with services.database.read() as session:
        if not source.startswith("ses_"):
            return np.asarray(vectors.numbers(vectors.get(session, source)))
        results = sessions.get(session, source)
    found = stored.direction(services.store, results, hook)
    return np.zeros(0) if found is None else found


def _log_probabilities(services: Services, reader: SessionReader) -> Floats:
    """The natural logarithm of each token's probability; NaN where the sample has none."""
    manifest = reader.manifest
    with services.database.read() as session:
        listed = samples.get(session, manifest.sample_id).logprobs or []
    # an echoed prompt is listed too
    first = 0 if len(listed) > manifest.generated_tokens else manifest.prompt_tokens
    found = np.full(manifest.num_tokens, np.nan)
    for place, one in enumerate(listed[: manifest.num_tokens - first], start=first):
        found[place] = one.get("logprob", np.nan)
    return found
