"""Shared prefixes: computed once as a read-only request that others fork from.

Prompts are hashed in chained blocks of 64 tokens. A prefix is made when a second request with the same
blocks arrives. Its keys and values lie in a range of their own, which a fork copies; its blocks of rows are
shared by all forks, since they hold 64 tokens too.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

from actograph.contract.row_selection import TokenRange
from worker.engine.capture.layouts import BLOCK, likeness_of
from worker.engine.edits import likeness_of as edit_likeness_of
from worker.engine.messages import Capture, Edit, Request
from worker.engine.slot import Slot

#: block hashes remembered
_REMEMBERED = 1 << 14
#: positions of edits and rows that lie after every prefix
_LATE = ("generated", "last", "last_prompt")


@dataclass(slots=True, eq=False)
class SharedPrefix:
    """The first tokens of several prompts.

    Attributes:
        slot: that reads it, from its placing on.
        ready: it is computed.
    """

    key: int
    request: Request
    slot: Slot | None = None
    ready: bool = False

    @property
    def tokens(self) -> int:
        return len(self.request.prompt_ids)


@dataclass(frozen=True, slots=True)
class PrefixKeys:
    """Keys of the prefixes that a request may share.

    Attributes:
        chained: hash of each number of whole blocks; at least one token is left to the request itself.
        likenesses: of each, equal for requests whose equal tokens have equal keys, values and rows there.
    """

    chained: tuple[int, ...] = ()
    likenesses: tuple[tuple[object, ...], ...] = field(default=(), repr=False)


class Prefixes:
    """Shared prefixes of one run."""

    def __init__(self) -> None:
        self._times: OrderedDict[int, int] = OrderedDict()  # block hash -> requests that had it
        #: least recently used first, each with its likeness
        self._known: OrderedDict[int, tuple[SharedPrefix, tuple[object, ...]]] = OrderedDict()
        self._number = count()

    def note(self, keys: PrefixKeys) -> None:
        """Count the blocks of a new request."""
        for key in keys.chained:
            self._times[key] = self._times.pop(key, 0) + 1
        while len(self._times) > _REMEMBERED:
            self._times.popitem(last=False)

    def find(self, request: Request, keys: PrefixKeys, *, make: bool = True) -> SharedPrefix | None:
        """The longest prefix that a request shares with another.

        Args:
            make: make one that is not there yet; it is not ready.
        """
        for blocks in range(len(keys.chained), 0, -1):
            key, tokens = keys.chained[blocks - 1], request.prompt_ids[: blocks * BLOCK]
            known, likeness = self._known.get(key, (None, ()))
            own = keys.likenesses[blocks - 1]
            if known is not None and known.request.prompt_ids == tokens and likeness == own:
                self._known.move_to_end(key)
                return known
            if make and known is None and self._times.get(key, 0) > 1:
                made = SharedPrefix(key, self._read(request, tokens))
                self._known[key] = made, own
                return made
        return None

    def forget(self, prefix: SharedPrefix, *, ever: bool = False) -> None:
        """Remove a prefix; `ever`: it is not made again."""
        self._known.pop(prefix.key, None)
        self._times[prefix.key] = -(1 << 40) if ever else 0

    def oldest(self, but: SharedPrefix | None = None) -> SharedPrefix | None:
        """The ready prefix that was used longest ago."""
        return next((one for one, _ in self._known.values() if one.ready and one is not but), None)

    def pending(self, request: Request, keys: PrefixKeys) -> bool:
        """Whether a request waits for a prefix that is being computed."""
        known = self.find(request, keys, make=False)
        return known is not None and known.slot is not None and not known.ready

    def all(self) -> list[SharedPrefix]:
        """Every prefix, ready or not."""
        return [prefix for prefix, _ in self._known.values()]

    def _read(self, request: Request, tokens: tuple[int, ...]) -> Request:
        return Request(
            key=f"prefix {next(self._number)}",
            prompt_ids=tokens,
            seed=0,
            edits=_early(request.edits, len(tokens)),
            max_tokens=0,
            capture=_early_rows(request.capture),
            priority=request.priority,
        )


def keys_of(request: Request) -> PrefixKeys:
    """Keys of the prefixes that a request may share; none if it must run alone."""
    capture = request.capture
    full = (len(request.prompt_ids) - 1) // BLOCK * BLOCK
    if not full or request.score_prompt or any(edit.rule is not None for edit in request.edits):
        return PrefixKeys()
    if capture is not None and (request.rule is not None or capture.summarises):
        return PrefixKeys()
    rows = _early_rows(capture)
    of_rows = None if rows is None else likeness_of(rows)
    alike = {edit: edit_likeness_of(edit) for edit in _early(request.edits, full)}
    key, keys, likenesses = 0, list[int](), list[tuple[object, ...]]()
    for at in range(0, full, BLOCK):
        likeness = (of_rows, tuple(alike[edit] for edit in _early(request.edits, at + BLOCK)))
        key = hash((key, likeness, request.prompt_ids[at : at + BLOCK]))
        keys.append(key)
        likenesses.append(likeness)
    return PrefixKeys(tuple(keys), tuple(likenesses))


def _early(edits: Sequence[Edit], tokens: int) -> tuple[Edit, ...]:
    """Edits that a prefix of so many tokens needs too."""
    return tuple(
        edit
        for edit in edits
        if not edit.changes_nothing
        and edit.positions not in _LATE
        and edit.after is None
        and not (isinstance(edit.positions, TokenRange) and edit.positions.start >= tokens)
    )


def _early_rows(capture: Capture | None) -> Capture | None:
    """Rows that a prefix captures for a request."""
    if capture is None or capture.is_empty or capture.positions in _LATE:
        return None
    return replace(capture, positions="all", held_rows=0)
