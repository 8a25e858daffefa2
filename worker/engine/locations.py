"""Module locations, and the table of a model's verified ones.

A location is `<module path>.input`, `.output`, or `.output.<i>` for a part of a tuple. `.output` of a module
that returns a tuple is its first tensor; `.output.1` is the second element. Attention modules have `.query`,
`.key` and `.value` besides: what they give to transformers' attention function, of the tokens of the pass.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, NamedTuple, cast

from actograph.contract.errors import UnknownHook
from actograph.contract.models import ModelStructure
from worker.engine.model.loaded import LoadedModel

_LOCATION = re.compile(r"(?P<path>.+)\.(?P<side>input|output|query|key|value)(?:\.(?P<part>[1-9]\d*))?")


Side = Literal["input", "output", "query", "key", "value"]
#: sides of an attention module that its attention function sees
ATTENDED: tuple[Side, ...] = ("query", "key", "value")


class Place(NamedTuple):
    """A location in its pieces."""

    path: str  # of the module
    side: Side
    part: int  # element of a tuple; 0 is the main tensor

    @property
    def parent(self) -> str:
        return self.path.rpartition(".")[0]


@cache
def place_of(location: str) -> Place:
    """Split a location into its pieces.

    Raises:
        ValueError: `location` is not a valid location.
    """
    match = _LOCATION.fullmatch(location)
    if match is None:
        raise ValueError(f"{location!r} is not a module location")
    return Place(match["path"], cast(Side, match["side"]), int(match["part"] or 0))


@dataclass(frozen=True)
class ModelHooks:
    """A loaded model with its verified structure: where each hook is read and written.

    Only locations in `structure` are accepted.
    """

    model: LoadedModel
    structure: ModelStructure
    same_as: Mapping[str, str]  # location -> first location that shows the same tensor
    flat: frozenset[str]  # locations whose tensor is [batch * tokens, ...]
    widths: Mapping[str, int]  # location -> numbers per token

    @cached_property
    def _order(self) -> Mapping[str, int]:
        return {location: i for i, location in enumerate(self.structure.module_locations)}

    def width_of(self, hook: str) -> int:
        """Numbers per token at a hook or module location. Raises UnknownHook."""
        return self.widths[self._location(hook)]

    def edited_at(self, hook: str) -> str:
        """First location that shows a hook's tensor: edits are written there. Raises UnknownHook."""
        return self.same_as[self._location(hook)]

    def reads(self, hooks: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
        """Locations to read in each forward pass, in execution order, and the hooks that name each.

        Hooks that show the same tensor share one read, at the first of their locations.

        Raises:
            UnknownHook: the model has no such location.
        """
        groups: dict[tuple[str, bool], dict[str, list[str]]] = {}
        for hook in dict.fromkeys(hooks):
            location = self._location(hook)
            # the head's input is the last norm's tensor, but of the last token alone
            tail_only = self.structure.module_tensors[location].tail_only
            groups.setdefault((self.same_as[location], tail_only), {}).setdefault(location, []).append(hook)
        reads = []
        for group in groups.values():
            first = min(group, key=self._order.__getitem__)
            reads.append((first, tuple(hook for names in group.values() for hook in names)))
        return sorted(reads, key=lambda read: self._order[read[0]])

    def _location(self, hook: str) -> str:
        info = self.structure.hooks.get(hook)
        location = hook if info is None else info.location
        if location not in self._order:
            raise UnknownHook(
                f"{hook}: this model has no such hook or module location; expand aliases first", param="hooks"
            )
        return location
