"""Data common to all sessions of a job, and the capture that the engine is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from actograph.contract import models
from actograph.contract.row_selection import FirstFeatures, NamedPositions, Positions, held_back
from actograph.contract.specs import CaptureSpec
from actograph.plans import is_tail_only
from worker.engine.capture.statistics import STATISTICS
from worker.engine.requests import RowShaping, StatisticsOptions
from worker.sample import choosers
from worker.sample.segments import Markup
from worker.sample.steering import UNSTEERED, Steering


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Data common to all sessions of a slice."""

    structure: models.ModelStructure
    tokenizer_sha256: str
    template_sha256: str | None
    capture: CaptureSpec
    hooks: Sequence[str]
    #: each name in the capture spec -> its hook
    resolved: Mapping[str, str] = field(default_factory=dict)
    markup: Markup
    steering: Steering = UNSTEERED
    #: whether a sample may have several turns
    takes_turns: bool = False

    @cached_property
    def tail_only(self) -> frozenset[str]:
        """Hooks that have rows from the last prompt token on."""
        return frozenset(hook for hook in self.hooks if is_tail_only(self.structure, hook))

    @property
    def identity_sha256(self) -> str | None:
        identity = self.structure.identity
        return None if identity is None else identity.sha256

    @property
    def positions(self) -> NamedPositions:
        """Positions for the engine; "all" beside a chooser."""
        return choosers.named(self.captured)

    @property
    def captured(self) -> Positions:
        """Positions whose rows the engine keeps; the session may hold fewer."""
        return choosers.captured(self.capture.positions)

    @property
    def held_rows(self) -> int:
        """Rows of a hook that a sample holds until its end, see `worker.sample.held_rows`."""
        held = held_back(self.capture.positions)
        return 0 if held is None else held[1]

    @property
    def shaping(self) -> RowShaping:
        """Reduction and statistics computed on the device."""
        features, stats = self.capture.features, self.capture.stats
        columns: slice | tuple[int, ...] | None = None
        if isinstance(features, FirstFeatures):
            columns = slice(features.first)
        elif features is not None:
            columns = tuple(features.indices)
        return RowShaping(
            columns=columns,
            chooser=choosers.chooser(self.captured, self.markup),
            reduce=self.capture.reduce,
            statistics=None
            if stats is None
            else StatisticsOptions(threshold=stats.threshold, rows=stats.tensors),
        )

    @property
    def is_consecutive(self) -> bool:
        """True if the rows of a hook belong to consecutive tokens in every sample."""
        by_name = choosers.chooser(self.capture.positions, self.markup) is None
        return not self.takes_turns and by_name

    def tensor_names(self, hook: str) -> list[tuple[str, str | None]]:
        """Stored tensors of a hook: name, and the kind of summary or None for plain rows."""
        capture, names = self.capture, list[tuple[str, str | None]]()
        if capture.stats is None or capture.stats.tensors:
            names.append((hook, None if capture.reduce == "none" else capture.reduce))
        if capture.stats is not None:
            kinds = STATISTICS if capture.stats.threshold is not None else STATISTICS[:-1]
            names += [(f"{hook}.{kind}", kind) for kind in kinds]
        return names
