"""Where each hook is read and written, and in which order."""

from collections.abc import Sequence

from actograph.contract.errors import UnknownHook
from worker.engine.requests import Edit
from worker.engine.rows.held_rows import Point
from worker.engine.structure.structure import Discovery


class HookReads:
    """The allow-list of a model's locations: what is not in its structure is refused."""

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery
        self._structure = discovery.structure
        self._order = {location: i for i, location in enumerate(self._structure.module_locations)}

    def width_of(self, hook: str) -> int:
        """Numbers per token at a hook or module location. Raises UnknownHook."""
        return self._discovery.widths[self._location(hook)]

    def edited_at(self, hook: str) -> str:
        """Where a hook's tensor is written: the first location that shows it. Raises UnknownHook."""
        return self._discovery.same_as[self._location(hook)]

    def of(self, hooks: Sequence[str], edits: Sequence[Edit] = ()) -> list[tuple[str, Point]]:
        """What to read at each step, in execution order: (location, point).

        Hooks whose locations show the same tensor share one read, at the first of them. What is
        read before a later edit is copied, for the edit may write to memory that both share.

        Raises:
            UnknownHook: no such location.
        """
        last_edit = max((self._order[self.edited_at(edit.hook)] for edit in edits), default=-1)
        groups: dict[tuple[str, bool], dict[str, list[str]]] = {}
        for hook in dict.fromkeys(hooks):
            location = self._location(hook)
            # what the head takes in is the last norm's tensor, but of the last token alone
            tail_only = self._structure.module_tensors[location].tail_only
            tensor = (self._discovery.same_as[location], tail_only)
            groups.setdefault(tensor, {}).setdefault(location, []).append(hook)
        reads = []
        for group in groups.values():
            first = min(group, key=self._order.__getitem__)
            changed = not self._discovery.changed_later.isdisjoint(group)
            changed = changed or self._order[first] < last_edit
            reads.append((first, Point(tuple(hook for names in group.values() for hook in names), changed)))
        return sorted(reads, key=lambda read: self._order[read[0]])

    def _location(self, hook: str) -> str:
        info = self._structure.hooks.get(hook)
        location = hook if info is None else info.location
        if location not in self._order:
            raise UnknownHook(
                f"{hook}: no hook point or module location of this model; names must be expanded first",
                param="hooks",
            )
        return location
