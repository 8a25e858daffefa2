"""One number for each token of a session: norm, channel, projection, similarity, log probability.

Rows are read in blocks and reduced in float64, so a value depends neither on the request nor on the machine's
number of cores. Values are kept in a `ValueCache`; the digests of the session's files are part of the key.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from actograph import tensor_files
from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import TensorInfo
from storage.sessions.reader import SessionReader
from storage.sessions.value_cache import ValueCache

Floats = NDArray[np.float64]
Values = NDArray[np.float32]
#: rows [n, width] and the tokens of these rows -> n numbers
Reduce = Callable[[Floats, Sequence[int]], Floats]

#: tokens of one cached block
BLOCK_TOKENS = 1024
#: values that are converted to float64 at a time
_PIECE_VALUES = 1 << 17
_VERSION = 1
LOGITS = "logits"


@dataclass(frozen=True, kw_only=True)
class Statistic:
    """A number to compute from each row of a hook."""

    #: identifies the statistic and its parameters in the cache
    key: str
    reduce: Reduce
    #: True if the row of token t is about token t + 1
    is_of_next: bool = False


def norm() -> Statistic:
    """The Euclidean norm of each row."""
    return Statistic(key="norm", reduce=lambda rows, _: np.sqrt(np.einsum("ij,ij->i", rows, rows)))


def channel(number: int, info: TensorInfo) -> Statistic:
    """One channel of each row. Raises InvalidRequest if the rows have no such channel."""
    width = info.shape[1]
    if not 0 <= number < width:
        raise InvalidRequest(f"channel {number}: the rows have channels 0 to {width - 1}", param="channel")
    return Statistic(key=f"channel {number}", reduce=lambda rows, _: rows[:, number])


def projection(vector: Sequence[float], info: TensorInfo) -> Statistic:
    """The length of each row along a direction.

    Raises:
        InvalidRequest: the direction has another width than the rows, or is zero.
    """
    along = np.asarray(vector, dtype=np.float64)
    if along.shape != (info.shape[1],):
        raise InvalidRequest(
            f"the vector has {along.size} numbers, the rows have {info.shape[1]}", param="vector_id"
        )
    length = float(np.sqrt(np.einsum("i,i->", along, along)))
    if not length:
        raise InvalidRequest("the vector is zero, so it has no direction", param="vector_id")
    unit = along / length
    digest = sha256(along.tobytes()).hexdigest()
    return Statistic(key=f"projection {digest}", reduce=lambda rows, _: np.einsum("ij,j->i", rows, unit))


def cosine(reader: SessionReader, hook: str, token: int) -> Statistic:
    """The cosine between each row and the row of one token; 0 for a row of zeros.

    Raises:
        InvalidRequest: the hook has no row of this token.
    """
    place = _place(reader.tokens_of_rows(hook), token)
    if place is None or reader.tensor_info(hook).summary is not None:
        raise InvalidRequest(f"{hook} has no row of token {token}", param="token")
    one = _floats(reader, hook, place, place + 1)[0]
    length = np.sqrt(np.einsum("i,i->", one, one))

    def reduce(rows: Floats, _: Sequence[int]) -> Floats:
        lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows)) * length
        found: Floats = np.einsum("ij,j->i", rows, one) / np.where(lengths, lengths, 1.0)
        return found

    return Statistic(key=f"cosine {token}", reduce=reduce)


def log_probability(token_ids: Sequence[int]) -> Statistic:
    """The log probability (natural) of each token after the first, from captured logits."""
    after = np.asarray(token_ids[1:], dtype=np.int64)

    def reduce(rows: Floats, tokens: Sequence[int]) -> Floats:
        with np.errstate(invalid="ignore"):
            rest = rows - rows.max(axis=1, keepdims=True)
        sums = np.log(np.exp(rest).sum(axis=1))
        found = np.full(len(tokens), np.nan)
        for place, token in enumerate(tokens):
            if token < len(after) and after[token] < rows.shape[1]:
                found[place] = rest[place, after[token]] - sums[place]
        return found

    return Statistic(key="log probability", reduce=reduce, is_of_next=True)


def values(
    reader: SessionReader, hook: str, statistic: Statistic, tokens: tuple[int, int], cache: ValueCache
) -> Values:
    """The statistic for tokens [start, stop); NaN for tokens without a row.

    Only the blocks of these tokens are read.

    Raises:
        InvalidRequest: the hook has a reduced row, or numpy cannot represent its numbers.
        StoreDamaged: the stored files are missing, short or changed.
    """
    start, stop = tokens
    info = reader.tensor_info(hook)
    if info.summary is not None:
        raise InvalidRequest(f"{hook} has one row for all tokens ({info.summary})", param="hook")
    if info.dtype.startswith("F8"):
        raise InvalidRequest(f"numpy cannot represent {info.dtype} of {hook}", param="hook")
    found = np.full(max(0, stop - start), np.nan, dtype="<f4")
    for block in range(start // BLOCK_TOKENS, -(-stop // BLOCK_TOKENS)):
        first = block * BLOCK_TOKENS
        key = _key(reader, hook, statistic, first)
        data = cache.get(key)
        if data is None or len(data) != 4 * BLOCK_TOKENS:
            data = _block(reader, hook, statistic, first).tobytes()
            cache.put(key, data)
        low, high = max(start, first), min(stop, first + BLOCK_TOKENS)
        found[low - start : high - start] = np.frombuffer(data, "<f4")[low - first : high - first]
    return found


def _block(reader: SessionReader, hook: str, statistic: Statistic, first: int) -> Values:
    """Compute the values of tokens [first, first + BLOCK_TOKENS)."""
    tokens = reader.tokens_of_rows(hook)
    shift = int(statistic.is_of_next)
    low, high = _first_from(tokens, first - shift), _first_from(tokens, first + BLOCK_TOKENS - shift)
    block = np.full(BLOCK_TOKENS, np.nan, dtype="<f4")
    at_once = max(1, _PIECE_VALUES // reader.tensor_info(hook).shape[1])
    for start in range(low, high, at_once):
        stop = min(start + at_once, high)
        of = tokens[start:stop]
        places = np.asarray(of, dtype=np.int64) + shift - first
        with np.errstate(over="ignore", invalid="ignore"):
            block[places] = statistic.reduce(_floats(reader, hook, start, stop), of)
    return block


def _floats(reader: SessionReader, hook: str, start: int, stop: int) -> Floats:
    found = reader.rows(hook, start, stop)
    with np.errstate(invalid="ignore"):
        wide: Floats = tensor_files.value_array(found.dtype, found.shape, found.data).astype(np.float64)
    return wide


def _place(tokens: Sequence[int], token: int) -> int | None:
    """The row of a token; None if it has no row."""
    place = _first_from(tokens, token)
    return place if place < len(tokens) and tokens[place] == token else None


def _first_from(tokens: Sequence[int], token: int) -> int:
    """The first row whose token is not below `token`; rows ascend by token."""
    low, high = 0, len(tokens)
    while low < high:
        middle = (low + high) // 2
        if tokens[middle] < token:
            low = middle + 1
        else:
            high = middle
    return low


def content_key(reader: SessionReader, *about: object) -> str:
    """A cache key for something that depends on a session's content and on `about`."""
    files = [(file.name, file.sha256) for file in reader.manifest.files]
    return sha256(json.dumps([_VERSION, files, *about]).encode()).hexdigest()


def _key(reader: SessionReader, hook: str, statistic: Statistic, first: int) -> str:
    return content_key(reader, hook, statistic.key, first)
