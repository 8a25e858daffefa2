"""The other ranks of a model, as rank 0's engine tells them what it does."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from worker.engine.messages import RunOptions

if TYPE_CHECKING:
    from worker.engine.edits import PlannedChange
    from worker.engine.packed.step import Step


class OtherRanks(Protocol):
    """Does in all other ranks what this one does, in the same order."""

    def opened(self, options: RunOptions) -> None:
        """A run begins."""
        ...

    def closed(self) -> None:
        """The run has ended."""
        ...

    def moved(self, source: int, target: int, tokens: int) -> None:
        """Keys and values are copied within the arena."""
        ...

    def cleared(self, start: int, tokens: int) -> None:
        """Values of the arena are set to zero."""
        ...

    def passes(
        self,
        ids: Sequence[int],
        step: "Step",
        kept: Sequence[int] | None,
        changes: "Sequence[PlannedChange]",
    ) -> None:
        """A pass begins.

        Args:
            kept: places of the tokens whose logits are computed; None: of all.
            changes: of activations.
        """
        ...
