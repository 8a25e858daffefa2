"""Sessions that an analysis job reads, and their rows by range."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.orm import Session

from actograph import tensor_files
from actograph.contract.errors import InvalidRequest
from actograph.contract.row_selection import Selection
from actograph.contract.specs import AnalysisSpec
from storage.jobs.session_removal import Count
from storage.sessions import sessions
from storage.sessions.filter import SessionFilter
from storage.sessions.manifest import SessionManifest
from storage.sessions.reader import SessionReader


def filters(spec: AnalysisSpec, job_id: str) -> list[SessionFilter]:
    """Filters whose sessions together are those of one job."""
    wanted = spec.sessions
    conditions: list[str | None] = [*wanted.conditions] if wanted.conditions else [None]
    return [
        SessionFilter(job_id=job_id, condition=condition, tag=wanted.tag, correct=wanted.correct)
        for condition in conditions
    ]


def count(session: Session, spec: AnalysisSpec, job_id: str) -> Count:
    """Number and size of the sessions of one job; `limit` applies to the number alone."""
    found = [sessions.totals(session, one) for one in filters(spec, job_id)]
    number = sum(one.sessions for one in found)
    if spec.sessions.limit is not None:
        number = min(number, spec.sessions.limit)
    return Count(number, sum(one.bytes for one in found))


def session_ids(session: Session, spec: AnalysisSpec, job_id: str) -> list[str]:
    """Ids of the sessions of one job, oldest first in each condition."""
    found = [one for each in filters(spec, job_id) for one in sessions.ids(session, each)]
    return found[: spec.sessions.limit]


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of a hook.

    Attributes:
        values: [rows, width], as stored; bfloat16 is converted to float32.
        tokens: the token of each row.
    """

    values: NDArray[Any]
    tokens: NDArray[np.int64]


def row_numbers(reader: SessionReader, hook: str, spec: AnalysisSpec) -> NDArray[np.int64]:
    """Numbers of the rows of a hook's tensor that the spec selects.

    Raises:
        InvalidRequest: the hook was stored as a summary over tokens.
    """
    info = reader.tensor_info(hook)
    if info.summary is not None:
        raise InvalidRequest(f"{hook} was stored as the {info.summary} over tokens", param="hooks")
    manifest, tokens = reader.manifest, reader.tokens_of_rows(hook)
    selection = Selection.of(spec.rows, manifest.prompt_tokens)
    if spec.rows == "all":
        return np.arange(len(tokens))
    segments = _segments(manifest) if selection.segments is not None else [""] * manifest.num_tokens
    chosen = [row for row, token in enumerate(tokens) if selection.holds(token, segments[token])]
    return np.array(chosen[-1:] if selection.last_only else chosen, np.int64)


def rows(
    reader: SessionReader, hook: str, numbers: NDArray[np.int64], *, at_once: int | None = None
) -> Iterator[Rows]:
    """Read rows of a hook by range.

    Args:
        numbers: ascending row numbers, from `row_numbers`.
        at_once: most rows of a piece; None reads all at once.
    """
    tokens = np.asarray(reader.tokens_of_rows(hook), np.int64)
    step = max(1, at_once or len(numbers))
    for begin in range(0, len(numbers), step):
        chosen = numbers[begin : begin + step]
        pieces = [_read(reader, hook, start, stop) for start, stop in _ranges(chosen)]
        values = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        yield Rows(values, tokens[chosen])


def _read(reader: SessionReader, hook: str, start: int, stop: int) -> NDArray[Any]:
    piece = reader.rows(hook, start, stop)
    return tensor_files.value_array(piece.dtype, piece.shape, piece.data)


def _ranges(numbers: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Ranges [start, stop) of consecutive numbers."""
    for part in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
        yield int(part[0]), int(part[-1]) + 1


def _segments(manifest: SessionManifest) -> Sequence[str]:
    """Name of the segment of each token."""
    generated = ["answer"] * manifest.generated_tokens
    names = ["prompt"] * manifest.prompt_tokens + generated
    for segment in manifest.segments:
        names[segment.start : segment.stop] = [segment.name] * (segment.stop - segment.start)
    return names
