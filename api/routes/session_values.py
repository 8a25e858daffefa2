"""/v1/activations/sessions/{id}: tokens as text, and one number per token, for views of a session."""

import re
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from fastapi import Query
from starlette.responses import Response

from actograph.contract.errors import InvalidRequest, RangeNotSatisfiable
from actograph.contract.resources import NamedRange, SessionTokens, TensorInfo
from api import named_hooks
from api.dependencies import Services, ServicesDep, SessionId, known_id
from api.reading import session_logprobs, token_texts
from api.routes.sessions import reader_of
from api.routing import READ, Routes
from storage.sessions import row_values, vectors
from storage.sessions.reader import SessionReader
from storage.sessions.row_values import Statistic, Values
from storage.sessions.value_cache import ValueCache

router = Routes(prefix="/v1/activations", tags=["sessions"])

MOST_HOOKS = 64
MOST_VALUES = 1 << 22
_TOO_MANY = f"at most {MOST_VALUES} values at a time; ask for fewer tokens"
_RANGE = re.compile(r"([0-9]{0,12}):([0-9]{0,12})")

Of = Literal["norm", "channel", "projection", "cosine", "logprob"]
TokensQuery = Annotated[
    str | None, Query(alias="tokens", max_length=32, description="start:stop; default: all.")
]


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The chosen statistic and its parameters."""

    of: Of
    channel: int | None
    token: int | None
    vector: list[float] | None

    def statistic(self, reader: SessionReader, hook: str, info: TensorInfo) -> Statistic:
        """Raises InvalidRequest if a parameter is missing or does not fit the hook."""
        if self.of == "channel":
            return row_values.channel(_required(self.channel, "channel"), info)
        if self.of == "cosine":
            return row_values.cosine(reader, hook, _required(self.token, "token"))
        if self.of == "projection":
            if self.vector is None:
                raise InvalidRequest("name the vector to project on", param="vector_id")
            return row_values.projection(self.vector, info)
        return row_values.norm()


@router.add("GET", "/sessions/{session_id}/tokens", READ, "Tokens of a session as text", errors=[416])
def get_session_tokens(
    services: ServicesDep, session_id: SessionId, tokens: TokensQuery = None
) -> SessionTokens:
    """Read token ids, their texts, and the session's turns and segments.

    A worker stores the tokenizer of each model that it loads; without it there are only ids.
    """
    reader = reader_of(services, session_id)
    manifest = reader.manifest
    ids = reader.token_ids()
    start, stop = _range(tokens, len(ids))
    texts = token_texts.of_session(services.database, reader, _cache(services))
    return SessionTokens(
        session_id=session_id,
        start=start,
        total=len(ids),
        prompt_tokens=manifest.prompt_tokens,
        ids=ids[start:stop],
        texts=None if isinstance(texts, str) else texts[start:stop],
        no_texts=texts if isinstance(texts, str) else None,
        turns=[NamedRange(name=turn.role, start=turn.start, stop=turn.stop) for turn in manifest.turns],
        segments=[NamedRange(name=s.name, start=s.start, stop=s.stop) for s in manifest.segments],
        has_logprobs=row_values.LOGITS in manifest.tensors or _stored_logprobs(services, reader) is not None,
    )


@router.add(
    "GET",
    "/sessions/{session_id}/values",
    READ,
    "One number per token and hook",
    errors=[416],
    lane="reads",
    response_class=Response,
    responses={
        200: {
            "description": "Little-endian float32 [hooks, tokens]; NaN for tokens without a row.",
            "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
        },
    },
)
def get_session_values(
    services: ServicesDep,
    session_id: SessionId,
    *,
    of: Annotated[Of, Query(description="The number to compute from each row.")] = "norm",
    hook: Annotated[
        list[str] | None, Query(max_length=MOST_HOOKS, description="Repeat it for several hooks.")
    ] = None,
    channel: Annotated[int | None, Query(ge=0, lt=2**31, description="For `channel`.")] = None,
    token: Annotated[
        int | None, Query(ge=0, lt=2**31, description="For `cosine`: the token to compare with.")
    ] = None,
    vector_id: Annotated[
        str | None, Query(max_length=64, description="For `projection`: a stored vector.")
    ] = None,
    tokens: TokensQuery = None,
) -> Response:
    """Compute a number per token and hook.

    It is the norm of a row, one channel, its length along a stored vector, its cosine with the row of another
    token, or the token's log probability (without a hook).
    """
    reader = reader_of(services, session_id)
    start, stop = _range(tokens, reader.manifest.num_tokens)
    cache = _cache(services)
    if of == "logprob":
        found = [_logprobs(services, reader, start, stop, cache)]
    else:
        names = [_hook(services, reader, name) for name in hook or ()]
        if not names:
            raise InvalidRequest("name at least one hook", param="hook")
        if len(names) * (stop - start) > MOST_VALUES:
            raise InvalidRequest(_TOO_MANY, param="tokens")
        wanted = Wanted(of=of, channel=channel, token=token, vector=_vector(services, of, vector_id))
        chosen = [(name, wanted.statistic(reader, name, reader.tensor_info(name))) for name in names]
        found = [row_values.values(reader, name, what, (start, stop), cache) for name, what in chosen]
    return Response(
        np.stack(found).astype("<f4").tobytes(),
        media_type="application/octet-stream",
        headers={"X-Tensor-Shape": f"{len(found)},{stop - start}"},
    )


def _cache(services: Services) -> ValueCache:
    return ValueCache(services.settings.home)


def _range(text: str | None, count: int) -> tuple[int, int]:
    """Raises InvalidRequest, RangeNotSatisfiable."""
    match = _RANGE.fullmatch(text if text is not None else ":")
    if match is None:
        raise InvalidRequest(f"tokens: {text!r} is not start:stop, such as 0:10", param="tokens")
    start, stop = int(match[1] or 0), int(match[2]) if match[2] else count
    if not 0 <= start <= stop <= count:
        raise RangeNotSatisfiable(f"tokens {start}:{stop}: the session has tokens 0:{count}", param="tokens")
    return start, stop


def _hook(services: Services, reader: SessionReader, name: str) -> str:
    """The stored tensor of a name. Raises NotFound if the session has none."""
    found = named_hooks.of_session(services, reader, name)
    reader.tensor_info(found)
    return found


def _vector(services: Services, of: Of, vector_id: str | None) -> list[float] | None:
    """The numbers of the vector of a projection. Raises NotFound."""
    if of != "projection" or vector_id is None:
        return None
    with services.database.read() as session:
        return vectors.numbers(vectors.get(session, known_id(vector_id, "vec", "vector")))


def _logprobs(services: Services, reader: SessionReader, start: int, stop: int, cache: ValueCache) -> Values:
    """Log probabilities as the sample has them, or from captured logits.

    Raises:
        InvalidRequest: neither is stored.
    """
    stored = _stored_logprobs(services, reader)
    if stored is not None:
        return stored[start:stop]
    if row_values.LOGITS not in reader.manifest.tensors:
        raise InvalidRequest(
            "no log probabilities are stored: request logprobs, or capture the point logits", param="of"
        )
    statistic = row_values.log_probability(reader.token_ids())
    return row_values.values(reader, row_values.LOGITS, statistic, (start, stop), cache)


def _stored_logprobs(services: Services, reader: SessionReader) -> Values | None:
    return session_logprobs.of_session(services.database, services.structures, reader)


def _required(number: int | None, name: str) -> int:
    if number is None:
        raise InvalidRequest(f"{name} is required", param=name)
    return number
