"""Common beginnings: computed once as a read-only request that others fork from.

Prompts are hashed in chained blocks of 64 tokens. A beginning is made when a second request with the same
blocks arrives. Its keys and values lie in a range of their own, which a fork copies; its blocks of rows are
shared by all forks, since they hold 64 tokens too.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count

from worker.engine.capture.layouts import BLOCK
from worker.engine.capture.parts import Context
from worker.engine.requests import Edit, GenerationRequest
from worker.engine.runs import CapturePlan, RunRequest

#: block hashes remembered
_REMEMBERED = 1 << 14
#: positions of edits and rows that lie after every beginning
_LATE = ("generated", "last", "last_prompt")


@dataclass(slots=True, eq=False)
class Beginning:
    """The first tokens of several prompts."""

    key: int
    item: RunRequest
    live: Context | None = None  # from its placing on
    ready: bool = False

    @property
    def tokens(self) -> int:
        return len(self.item.prompt)


class Prefixes:
    """Beginnings of one run."""

    def __init__(self) -> None:
        self._times: OrderedDict[int, int] = OrderedDict()  # block hash -> requests that had it
        self._known: OrderedDict[int, Beginning] = OrderedDict()  # least recently used first
        self._number = count()

    def note(self, item: RunRequest) -> None:
        """Count the blocks of a new request."""
        for key in _keys(item):
            self._times[key] = self._times.pop(key, 0) + 1
        while len(self._times) > _REMEMBERED:
            self._times.popitem(last=False)

    def find(self, item: RunRequest, *, make: bool = True) -> Beginning | None:
        """The longest beginning that a request shares with another.

        Args:
            make: make one that is not there yet; it is not ready.
        """
        keys = _keys(item)
        for blocks in range(len(keys), 0, -1):
            key = keys[blocks - 1]
            known = self._known.get(key)
            if known is not None and _begins(known.item, item):
                self._known.move_to_end(key)
                return known
            if make and known is None and self._times.get(key, 0) > 1:
                made = Beginning(key, self._read(item, blocks))
                self._known[key] = made
                return made
        return None

    def forget(self, beginning: Beginning, *, ever: bool = False) -> None:
        """Remove a beginning; `ever`: it is not made again."""
        self._known.pop(beginning.key, None)
        self._times[beginning.key] = -(1 << 40) if ever else 0

    def oldest(self, but: Beginning | None = None) -> Beginning | None:
        """The ready beginning that was used longest ago."""
        return next((one for one in self._known.values() if one.ready and one is not but), None)

    def pending(self, item: RunRequest) -> bool:
        """Whether a request waits for a beginning that is being computed."""
        known = self.find(item, make=False)
        return known is not None and known.live is not None and not known.ready

    def all(self) -> list[Beginning]:
        """Every beginning, ready or not."""
        return list(self._known.values())

    def _read(self, item: RunRequest, blocks: int) -> RunRequest:
        request = GenerationRequest(
            key=f"beginning {next(self._number)}",
            prompt_ids=item.prompt[: blocks * BLOCK],
            seed=0,
            edits=_early(item.request.edits),
            max_tokens=0,
        )
        return RunRequest(request=request, capture=_early_rows(item.capture), priority=item.priority)


def _keys(item: RunRequest) -> list[int]:
    """Chained hashes of whole blocks; at least one token is left to the request itself."""
    request, plan = item.request, item.capture
    full = (len(item.prompt) - 1) // BLOCK * BLOCK
    if not full or request.score_prompt or any(edit.chooser is not None for edit in request.edits):
        return []
    if plan is not None:
        chosen = request.chooser is not None or plan.shaping.chooser is not None
        if chosen or plan.shaping.summarises or plan.positions not in ("all", "prompt", *_LATE):
            return []
    key, keys = hash(_likeness(item)), []
    for at in range(0, full, BLOCK):
        key = hash((key, item.prompt[at : at + BLOCK]))
        keys.append(key)
    return keys


def _likeness(item: RunRequest) -> tuple[object, ...]:
    """Key of requests whose equal tokens have equal keys, values and rows."""
    plan = _early_rows(item.capture)
    return (None if plan is None else plan.copies, tuple(edit.kind for edit in _early(item.request.edits)))


def _begins(beginning: RunRequest, item: RunRequest) -> bool:
    count = len(beginning.prompt)
    return beginning.prompt == item.prompt[:count] and _likeness(beginning) == _likeness(item)


def _early(edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """Edits that a beginning needs too."""
    return tuple(edit for edit in edits if not edit.changes_nothing and edit.positions not in _LATE)


def _early_rows(plan: CapturePlan | None) -> CapturePlan | None:
    """Rows that a beginning captures for a plan."""
    if plan is None or not plan.hooks or plan.positions in _LATE:
        return None
    return replace(plan, positions="all", held_rows=0)
