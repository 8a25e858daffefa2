"""Which rows of a session's tensor a choice of tokens means.

The words are those of a capture spec: `last_prompt`, `last`, `all`, `prompt`, `generated`, a segment, or the
number of a token from the first of the prompt on (-1 is the last of the prompt).
"""

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from pydantic import BaseModel

from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import Session, TensorInfo
from actograph.contract.row_selection import NamedRows, Reduce, Segment

#: `mean` is all rows averaged
RowChoice = NamedRows | Segment | Literal["mean"] | int

_SEGMENTS = frozenset(get_args(Segment)) - {"prompt"}
_NAMES = frozenset(get_args(NamedRows)) | _SEGMENTS


class NamedSpan(BaseModel):
    """A named range of tokens, [start, stop)."""

    name: str
    start: int
    stop: int


class Segmented(BaseModel):
    """The part of a session's manifest that names ranges of tokens."""

    segments: list[NamedSpan] = []


def spelled_out(rows: RowChoice, reduce: Reduce) -> tuple[NamedRows | Segment | int, Reduce]:
    """`mean` as what it stands for.

    Raises:
        InvalidRequest: no such choice, or `mean` beside another reduction.
    """
    if rows == "mean":
        if reduce not in ("none", "mean"):
            raise InvalidRequest(f"rows='mean' and reduce={reduce!r} contradict", param="rows")
        return "all", "mean"
    known = isinstance(rows, int) and not isinstance(rows, bool)
    if not known and rows not in _NAMES:
        raise InvalidRequest(
            f"rows={rows!r} is none of {', '.join(sorted(_NAMES | {'mean'}))}, or a token's number",
            param="rows",
        )
    if reduce not in get_args(Reduce):
        raise InvalidRequest(f"reduce={reduce!r} is none of {', '.join(get_args(Reduce))}", param="reduce")
    return rows, reduce


def needs_segments(rows: NamedRows | Segment | int) -> bool:
    """Whether the session's manifest must be asked where the tokens are."""
    return rows in _SEGMENTS


def token_spans(
    session: Session, rows: NamedRows | Segment | int, segments: Sequence[NamedSpan]
) -> list[tuple[int, int]]:
    """[start, stop) of the tokens that are meant; of the last token of a generation there is no row."""
    prompt, ran = session.prompt_tokens, session.rows
    if isinstance(rows, int):
        token = rows + prompt if rows < 0 else rows
        return [(token, token + 1)]
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
    """Consecutive rows [start, stop) whose tokens lie in the spans; `tokens` names each row's, ascending."""
    if isinstance(tokens, range):
        for low, high in spans:
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


def check_summary(info: TensorInfo, hook: str, rows: NamedRows | Segment | int, reduce: Reduce) -> None:
    """Raises InvalidRequest where a tensor's one row sums up other tokens than those asked for."""
    if info.summary is not None and (rows != "all" or reduce not in ("none", info.summary)):
        raise InvalidRequest(
            f"{hook} was stored as the {info.summary} over tokens: ask for rows='all' with "
            f"reduce='none' or {info.summary!r}",
            param="rows",
        )
