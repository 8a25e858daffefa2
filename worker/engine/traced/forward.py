"""The traced forward: one request per pass, transformers' own cache, one nnsight trace per pass.

For models that the packed forward refuses, and the reference that it is held against. It has the packed
forward's interface, so the loop, the choice of tokens, edits, capture and delivery are the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from nnsight.intervention.util import first_input
from torch import Tensor, nn

from worker.engine.attention_calls import watched
from worker.engine.capture.budget import Budget
from worker.engine.locations import ATTENDED, ModelHooks, Place, Side, place_of
from worker.engine.messages import Request
from worker.engine.model.loaded import LoadedModel
from worker.engine.pass_hooks import PassHooks
from worker.engine.slot import Slot, in_pack
from worker.engine.tokens.model_inputs import cached_inputs, new_cache
from worker.engine.tokens.sampler import new_next_ids
from worker.engine.traced import tracing
from worker.engine.variants import Variant


class _HookValues:
    """Shows the values at the locations of a pass to its hooks."""

    def __init__(self, lm: Any, at_hooks: PassHooks) -> None:
        self._at_hooks = at_hooks
        self._sites: dict[str, list[tuple[str, Place]]] = {}
        for location in at_hooks.locations:
            place = place_of(location)
            if place.side in ATTENDED:  # no module's input or output, see `_attention_hooks`
                continue
            self._sites.setdefault(f"{lm.path}.{place.path}.{place.side}", []).append((location, place))

    @property
    def modules(self) -> list[str]:
        return [place.path for sites in self._sites.values() for _, place in sites]

    def subscriptions(self) -> Mapping[str, Any]:
        return self._sites

    def observe_selected(self, selected: list[tuple[str, Place]], value: Any) -> None:
        for location, place in selected:
            if place.side == "input":
                self._at_hooks.at(location, first_input(*value))
            else:
                self._at_hooks.at(location, value[place.part] if place.part else value)


class TracedForward:
    """Runs a model under nnsight.

    Several requests may be live, each with a cache of its own; a pass runs one of them. A prompt is read in
    one pass, since recurrent layers cannot go on from a cache by several tokens.

    Args:
        budget: of the device's memory.
        tokens: of all live requests together.
        token_bytes: keys and values of one token.
        slots: requests at once, at most.

    Raises:
        MemoryError: so many tokens do not fit.
    """

    together = False
    forks = False
    chunks = False
    rows = 0
    varies = False

    def __init__(
        self, hooks: ModelHooks, budget: Budget, *, tokens: int, token_bytes: int, slots: int = 64
    ) -> None:
        self.hooks, self.budget = hooks, budget
        self.next_ids = new_next_ids(slots, hooks.model.device)  # no pass reads them
        self._tokens = self._left = tokens
        if not budget.take(tokens * token_bytes):
            raise MemoryError(f"{tokens} tokens do not fit in {budget.free:,} bytes")

    def refusal(self, request: Request) -> str | None:
        """Why a request can never run; None if it can."""
        needed = request.most_run
        return f"needs {needed} tokens of {self._tokens}" if needed > self._tokens else None

    def place(self, slot: Slot) -> bool:
        """Give a slot its cache; False if it must wait."""
        if slot.most > self._left:
            return False
        self._left -= slot.most
        slot.cache = new_cache(self.hooks.model)
        return True

    def fork(self, source: Slot, slot: Slot, tokens: int) -> None:
        """Never called: `forks` is False."""
        raise NotImplementedError

    def leave(self, slot: Slot) -> None:
        """Free a slot's cache."""
        self._left += slot.most
        slot.cache = None

    def restart(self, slot: Slot) -> int:
        """Take an empty cache: layers before the error have added tokens to theirs, or changed a state."""
        slot.cache = new_cache(self.hooks.model)
        return 0

    def run(self, slots: Sequence[Slot], at_hooks: PassHooks) -> Tensor:
        """Run the next tokens of one slot; see `PackedForward.run`. After an error it must `restart`."""
        (slot,) = slots
        at_hooks.begin(slots)
        model = self.hooks.model
        kept = list(in_pack(slots))
        inputs = cached_inputs(
            model,
            slot.tokens[slot.computed : slot.stop],
            slot.cache,
            computed=slot.computed,
            logits=max(1, len(kept)),
        )
        observer, box = _HookValues(model.lm, at_hooks), list[Tensor]()
        handle = model.hf.register_forward_hook(lambda _, __, output: box.append(output.logits[0]))
        try:
            with _attention_hooks(model, at_hooks):
                tracing.forward(model, inputs, [observer], observer.modules)
        finally:
            handle.remove()
        return box[-1][-len(kept) :] if kept else box[-1][:0]

    def read_variants(self, slot: Slot, variants: Sequence[Variant], at_hooks: PassHooks) -> Tensor:
        """Never called: `varies` is False."""
        raise NotImplementedError

    def prepare(self, at_hooks: PassHooks) -> None:
        """Nothing: each pass is a trace of its own."""

    def close(self) -> None:
        """Nothing is left on the model."""


@contextmanager
def _attention_hooks(model: LoadedModel, at_hooks: PassHooks) -> Iterator[None]:
    """Show a pass's hooks the queries, keys and values that they are at."""
    places = {location: place_of(location) for location in at_hooks.locations}
    at = {
        (model.hf.get_submodule(place.path), place.side): location
        for location, place in places.items()
        if place.side in ATTENDED
    }
    if not at:
        yield
        return

    def before(module: nn.Module, side: Side, tensor: Tensor) -> None:
        if (location := at.get((module, side))) is not None:
            at_hooks.at(location, tensor)

    with watched(model, before=before):
        yield
