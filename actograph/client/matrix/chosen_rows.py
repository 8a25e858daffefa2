"""Rows of a session's tensor at the positions that a caller asks for."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import TensorInfo
from actograph.contract.row_selection import NamedPositions, Positions, Reduce, Segment

#: positions as a caller gives them: as in a capture spec, or the number of one token
GivenPositions = str | int | Sequence[int] | Sequence[str] | Mapping[str, Any] | BaseModel

_adapter: TypeAdapter[Positions] = TypeAdapter(Positions)


class NamedSpan(BaseModel):
    """A named range of tokens, [start, stop)."""

    name: str
    start: int
    stop: int


class Segmented(BaseModel):
    """The segments in a session's manifest."""

    segments: list[NamedSpan] = []


def checked(positions: GivenPositions, reduce: Reduce) -> tuple[Positions, Reduce]:
    """The positions in the contract's form, and the reduction.

    Raises:
        InvalidRequest: unknown positions or an unknown reduction.
    """
    given = [positions] if isinstance(positions, int) and not isinstance(positions, bool) else positions
    try:
        found = _adapter.validate_python(given)
    except ValidationError as error:
        names = ", ".join([*get_args(NamedPositions), *get_args(Segment)[1:]])
        raise InvalidRequest(
            f"positions={positions!r} is none of {names}, token numbers, {{'stride': k}} or "
            "{'start': a, 'stop': b}",
            param="positions",
        ) from error
    if reduce not in get_args(Reduce):
        raise InvalidRequest(f"reduce={reduce!r} is none of {', '.join(get_args(Reduce))}", param="reduce")
    return found, reduce


def check_summary(info: TensorInfo, hook: str, positions: Positions, reduce: Reduce) -> None:
    """Raises InvalidRequest if a tensor is a summary of other tokens than the selected ones."""
    if info.summary is not None and (positions != "all" or reduce not in ("none", info.summary)):
        raise InvalidRequest(
            f"{hook} was stored as the {info.summary} over tokens: ask for positions='all' with "
            f"reduce='none' or {info.summary!r}",
            param="positions",
        )
