"""The forward that a run uses: packed or traced."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from worker.engine.capture.budget import Budget
from worker.engine.locations import ModelHooks
from worker.engine.messages import Request
from worker.engine.pass_hooks import PassHooks
from worker.engine.slot import Slot
from worker.engine.variants import Variant


class Forward(Protocol):
    """A model with the keys and values of its slots.

    Attributes:
        together: a pass takes several slots.
        forks: a slot can take over another one's first tokens.
        chunks: a prompt may be read in several passes.
        rows: of every pass, so that the numbers of a row do not depend on how many there are; 0: as many as
            there are tokens.
        varies: it reads variants of a prompt, see `read_variants`.
        budget: of the device's memory.
        next_ids: where a pass reads newest tokens that the host has not read, by the numbers of the sampler's
            entries.
    """

    together: bool
    forks: bool
    chunks: bool
    rows: int
    varies: bool
    hooks: ModelHooks
    budget: Budget
    next_ids: Tensor

    def refusal(self, request: Request) -> str | None:
        """Why a request can never run; None if it can."""
        ...

    def place(self, slot: Slot) -> bool:
        """Give a slot its `cache`; False if it must wait."""
        ...

    def fork(self, source: Slot, slot: Slot, tokens: int) -> None:
        """Take over the first tokens of another slot."""
        ...

    def leave(self, slot: Slot) -> None:
        """Free a slot's `cache`."""
        ...

    def restart(self, slot: Slot) -> int:
        """Forget what a failed pass has left of a slot.

        Returns: the number of its first tokens that are still computed; the others must run again.
        """
        ...

    def run(self, slots: Sequence[Slot], at_hooks: PassHooks) -> Tensor:
        """Run the next tokens of each slot, with its edits and captures.

        Returns: logits of the last `slot.logits` tokens of each, [tokens, vocabulary]; they are good until
            the next pass.
        """
        ...

    def read_variants(self, slot: Slot, variants: Sequence[Variant], at_hooks: PassHooks) -> Tensor:
        """Read variants of a request whose prompt is read, which begin at one layer.

        Returns: logits of the last token of each, [variants, vocabulary].
        """
        ...

    def prepare(self, at_hooks: PassHooks) -> None:
        """Make ready for passes with the captures that are open now."""
        ...

    def close(self) -> None:
        """End a run: remove all hooks from the model."""
        ...
