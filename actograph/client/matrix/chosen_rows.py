"""Rows of a session's tensor for a selection of tokens.

Selections are those of a capture spec: `last_prompt`, `last`, `all`, `prompt`, `generated`, a segment, or the
index of a token in the prompt and generation (-1 is the last prompt token).
"""

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from pydantic import BaseModel

from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import Session, TensorInfo
from actograph.contract.row_selection import NamedRows, Reduce, Segment, is_slice, slice_of

#: `mean` is all rows averaged; other texts are slices of a name, such as `generated[-5:]`
RowChoice = NamedRows | Segment | Literal["mean"] | int | str

_SEGMENTS = frozenset(get_args(Segment)) - {"prompt"}
_NAMES = frozenset(get_args(NamedRows)) | _SEGMENTS
#: names of which a slice can be taken
_SLICED = _NAMES - {"last", "last_prompt"}


class NamedSpan(BaseModel):
    """A named range of tokens, [start, stop)."""

    name: str
    start: int
    stop: int


class Segmented(BaseModel):
    """The segments in a session's manifest."""

    segments: list[NamedSpan] = []


def spelled_out(rows: RowChoice, reduce: Reduce) -> tuple[str | int, Reduce]:
    """Replace `rows="mean"` by all rows, averaged.

    Raises:
        InvalidRequest: an unknown selection, or `mean` with another reduction.
    """
    if rows == "mean":
        if reduce not in ("none", "mean"):
            raise InvalidRequest(f"rows='mean' and reduce={reduce!r} contradict", param="rows")
        return "all", "mean"
    known = isinstance(rows, int) and not isinstance(rows, bool)
    if is_slice(rows) and str(rows).split("[")[0] in _SLICED:
        known = True
    if not known and rows not in _NAMES:
        raise InvalidRequest(
            f"rows={rows!r} is none of {', '.join(sorted(_NAMES | {'mean'}))}, a token's number, or a slice "
            "such as generated[-5:]",
            param="rows",
        )
    if reduce not in get_args(Reduce):
        raise InvalidRequest(f"reduce={reduce!r} is none of {', '.join(get_args(Reduce))}", param="reduce")
    return rows, reduce


def needs_segments(rows: str | int) -> bool:
    """Whether the selection needs the segments of the session's manifest."""
    return isinstance(rows, str) and rows.split("[")[0] in _SEGMENTS


def token_spans(session: Session, rows: str | int, segments: Sequence[NamedSpan]) -> list[tuple[int, int]]:
    """Return [start, stop) of the selected tokens. The last generated token has no row."""
    prompt, ran = session.prompt_tokens, session.rows
    if isinstance(rows, int):
        token = rows + prompt if rows < 0 else rows
        return [(token, token + 1)]
    if is_slice(rows):
        name, bounds = slice_of(rows)
        whole = token_spans(session, name, segments)
        tokens = [token for start, stop in whole for token in range(start, min(stop, ran))]
        return [(token, token + 1) for token in tokens[bounds]]
    if needs_segments(rows):
        return [(span.start, span.stop) for span in segments if span.name == rows]
    spans = {
        "all": (0, ran),
        "prompt": (0, prompt),
        "generated": (prompt, ran),
        "last": (ran - 1, ran),
        "last_prompt": (prompt - 1, prompt),
    }
    return [spans[rows]]


def row_ranges(tokens: range | Sequence[int], spans: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows whose tokens are in the spans. `tokens`: token of each row, ascending."""
    if isinstance(tokens, range):
        for low, high in _joined(spans):
            start, stop = max(low, tokens.start) - tokens.start, min(high, tokens.stop) - tokens.start
            if start < stop:
                yield start, stop
        return
    begun: int | None = None
    for row, token in enumerate([*tokens, None]):
        inside = token is not None and any(low <= token < high for low, high in spans)
        if inside and begun is None:
            begun = row
        elif not inside and begun is not None:
            yield begun, row
            begun = None


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join spans that follow each other."""
    joined: list[tuple[int, int]] = []
    for low, high in spans:
        begun = joined.pop()[0] if joined and joined[-1][1] == low else low
        joined.append((begun, high))
    return joined


def check_summary(info: TensorInfo, hook: str, rows: str | int, reduce: Reduce) -> None:
    """Raises InvalidRequest if a tensor is a summary of other tokens than the selected ones."""
    if info.summary is not None and (rows != "all" or reduce not in ("none", info.summary)):
        raise InvalidRequest(
            f"{hook} was stored as the {info.summary} over tokens: ask for rows='all' with "
            f"reduce='none' or {info.summary!r}",
            param="rows",
        )
