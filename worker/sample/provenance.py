"""Data common to all sessions of a job, and the capture that the engine is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from actograph.contract import models
from actograph.contract.head_columns import HEAD_POINTS, common_columns
from actograph.contract.hooks import layer_of, point_of
from actograph.contract.readouts import is_readout
from actograph.contract.row_selection import FirstFeatures, HeadFeatures, Positions, held_back
from actograph.contract.saes import is_latents, part_names
from actograph.contract.specs import CaptureSpec
from evals.plans import is_tail_only
from worker.engine.messages import STATISTICS, Capture, ReadoutLimit, StatisticsOptions
from worker.sample import token_rules
from worker.sample.readouts import ReadoutInUse
from worker.sample.saes import SaeInUse
from worker.sample.steering import UNSTEERED, Steering
from worker.text.segments import Markup


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Data common to all sessions of a slice."""

    structure: models.ModelStructure
    tokenizer_sha256: str
    template_sha256: str | None
    capture: CaptureSpec
    #: names of hooks, then of latents and readouts
    hooks: Sequence[str]
    #: SAEs by the name of their latents
    saes: Mapping[str, SaeInUse] = field(default_factory=dict)
    #: readouts by the stored name of their values
    readouts: Mapping[str, ReadoutInUse] = field(default_factory=dict)
    #: each name in the capture spec -> its hook
    resolved: Mapping[str, str] = field(default_factory=dict)
    markup: Markup
    steering: Steering = UNSTEERED
    #: whether a sample may have several turns
    takes_turns: bool = False
    #: whether samples are read again, so that the kept tokens are known before the run
    is_replay: bool = False
    #: largest difference of a replay's rows, see `ReplaySpec`
    tolerance: float | None = None

    @cached_property
    def tail_only(self) -> frozenset[str]:
        """Hooks that have rows from the last prompt token on."""
        return frozenset(hook for hook in self.hooks if is_tail_only(self.structure, self.source_of(hook)))

    def source_of(self, name: str) -> str:
        """The hook that a name of latents or a readout belongs to, or the hook itself."""
        if name in self.readouts:
            return self.readouts[name].readout.hook
        return self.saes[name].encoding.hook if name in self.saes else name

    @cached_property
    def attention(self) -> dict[int, models.LayerHeads]:
        """Attention of the layers whose heads are stored."""
        layers = {layer_of(hook) for hook in self.hooks if point_of(hook) in HEAD_POINTS}
        return {layer: one for layer, one in self.structure.attention.items() if layer in layers}

    @property
    def identity_sha256(self) -> str | None:
        identity = self.structure.identity
        return None if identity is None else identity.sha256

    @property
    def captured(self) -> Positions:
        """Positions whose rows the engine keeps; the session may hold fewer."""
        return "all" if self.is_replay else token_rules.captured(self.capture.positions)

    @property
    def held_rows(self) -> int:
        """Rows of a hook that a sample holds until its end, see `worker.sample.held_rows`."""
        held = held_back(self.capture.positions)
        return 0 if held is None or self.is_replay else held[1]

    @cached_property
    def asked(self) -> Capture:
        """The capture that the engine is asked for; a rule may select its tokens."""
        features, stats = self.capture.features, self.capture.stats
        hooks = tuple(hook for hook in self.hooks if not is_latents(hook) and not is_readout(hook))
        columns: int | tuple[int, ...] | None = None
        if isinstance(features, FirstFeatures):
            columns = features.first
        elif isinstance(features, HeadFeatures):
            columns = common_columns(features, hooks, self.structure, "capture.features")
        elif features is not None:
            columns = tuple(features.indices)
        return Capture(
            hooks=hooks,
            encodings=tuple(one.encoding for one in self.saes.values()),
            readouts=tuple(one.readout for one in self.readouts.values()),
            positions=token_rules.named(self.captured) or "all",
            dtype=self.capture.dtype,
            held_rows=self.held_rows,
            columns=columns,
            reduce=self.capture.reduce,
            statistics=None
            if stats is None
            else StatisticsOptions(threshold=stats.threshold, rows=stats.tensors),
        )

    @property
    def stops(self) -> tuple[ReadoutLimit, ...]:
        """Readouts that end a sample."""
        return tuple(stop for one in self.readouts.values() if (stop := one.stop) is not None)

    @property
    def summarises(self) -> bool:
        """Whether rows are summed up on the device."""
        return self.capture.reduce != "none" or self.capture.stats is not None

    @property
    def is_consecutive(self) -> bool:
        """True if the rows of a hook belong to consecutive tokens in every sample."""
        by_name = token_rules.named(self.capture.positions) is not None
        return not self.takes_turns and by_name

    def tensor_names(self, hook: str) -> list[tuple[str, str | None]]:
        """Stored tensors of a hook: name, and the kind of summary or None for plain rows."""
        if is_latents(hook):
            return [(part, None) for part in part_names(hook)]
        capture, names = self.capture, list[tuple[str, str | None]]()
        if capture.stats is None or capture.stats.tensors:
            names.append((hook, None if capture.reduce == "none" else capture.reduce))
        if capture.stats is not None:
            kinds = STATISTICS if capture.stats.threshold is not None else STATISTICS[:-1]
            names += [(f"{hook}.{kind}", kind) for kind in kinds]
        return names
