"""Module locations: `<module path>.input`, `.output`, or `.output.<i>` for a part of a tuple.

`.output` of a module that puts out a tuple is its first tensor; `.output.1` is the second element.
"""

import re
from functools import cache
from typing import Literal, NamedTuple, cast

_LOCATION = re.compile(r"(?P<path>.+)\.(?P<side>input|output)(?:\.(?P<part>[1-9]\d*))?")


class Place(NamedTuple):
    """A location in its pieces."""

    path: str  # of the module
    side: Literal["input", "output"]
    part: int  # element of a tuple; 0 is the main tensor

    @property
    def parent(self) -> str:
        return self.path.rpartition(".")[0]


@cache
def place_of(location: str) -> Place:
    """Take a location apart.

    Raises:
        ValueError: it is none.
    """
    match = _LOCATION.fullmatch(location)
    if match is None:
        raise ValueError(f"{location} is no module location")
    return Place(match["path"], cast(Literal["input", "output"], match["side"]), int(match["part"] or 0))
