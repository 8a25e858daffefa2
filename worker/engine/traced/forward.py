"""The traced forward: one request per pass, transformers' own cache, one nnsight trace per pass.

For models that the packed forward refuses, and the reference that it is held against. It has the packed
forward's interface, so the loop, the choice of tokens, edits, capture and delivery are the same.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nnsight.intervention.util import first_input
from torch import Tensor

from worker.engine.capture.budget import Budget
from worker.engine.capture.parts import Context, Part, in_pack
from worker.engine.capture.taps import Taps
from worker.engine.locations import ModelHooks, Place, place_of
from worker.engine.tokens.model_inputs import cached_inputs, new_cache
from worker.engine.traced import tracing


class _Observer:
    """Shows the values at the locations of a pass to its taps."""

    def __init__(self, lm: Any, taps: Taps) -> None:
        self._taps = taps
        self._sites: dict[str, list[tuple[str, Place]]] = {}
        for location in taps.locations:
            place = place_of(location)
            self._sites.setdefault(f"{lm.path}.{place.path}.{place.side}", []).append((location, place))

    @property
    def modules(self) -> list[str]:
        return [place.path for sites in self._sites.values() for _, place in sites]

    def subscriptions(self) -> Mapping[str, Any]:
        return self._sites

    def observe_selected(self, selected: list[tuple[str, Place]], value: Any) -> None:
        for location, place in selected:
            if place.side == "input":
                self._taps.at(location, first_input(*value))
            else:
                self._taps.at(location, value[place.part] if place.part else value)


class TracedForward:
    """Runs a model under nnsight.

    Several requests may be live, each with a cache of its own; a pass runs one of them. A prompt is read in
    one pass, since recurrent layers cannot go on from a cache by several tokens.

    Args:
        budget: of the device's memory.
        tokens: of all live requests together.
        token_bytes: keys and values of one token.

    Raises:
        MemoryError: so many tokens do not fit.
    """

    together = False
    forks = False
    chunks = False

    def __init__(self, hooks: ModelHooks, budget: Budget, *, tokens: int, token_bytes: int) -> None:
        self.hooks, self.budget = hooks, budget
        self._tokens = self._left = tokens
        if not budget.take(tokens * token_bytes):
            raise MemoryError(f"{tokens} tokens do not fit in {budget.free:,} bytes")

    def refusal(self, context: Context) -> str | None:
        """Why a request can never run; None if it can."""
        return f"needs {context.most} tokens of {self._tokens}" if context.most > self._tokens else None

    def place(self, context: Context) -> bool:
        """Give a request its cache; False if it must wait."""
        if context.most > self._left:
            return False
        self._left -= context.most
        context.place = new_cache(self.hooks.model)
        return True

    def fork(self, source: Context, context: Context, tokens: int) -> None:
        """Never called: `forks` is False."""
        raise NotImplementedError

    def leave(self, context: Context) -> None:
        """Free a request's cache."""
        self._left += context.most
        context.place = None

    def restart(self, context: Context) -> int:
        """Take an empty cache: layers before the error have added tokens to theirs, or changed a state."""
        context.place = new_cache(self.hooks.model)
        return 0

    def run(self, parts: Sequence[Part], taps: Taps) -> Tensor:
        """Run one part; see `PackedForward.run`. After an error the request must `restart`."""
        (part,) = parts
        taps.begin(parts)
        model, context = self.hooks.model, part.context
        kept = list(in_pack(parts))
        inputs = cached_inputs(
            model,
            context.tokens[part.start : part.stop],
            context.place,
            computed=part.start,
            logits=max(1, len(kept)),
        )
        observer, box = _Observer(model.lm, taps), list[Tensor]()
        handle = model.hf.register_forward_hook(lambda _, __, output: box.append(output.logits[0]))
        try:
            tracing.forward(model, inputs, [observer], observer.modules)
        finally:
            handle.remove()
        return box[-1][-len(kept) :] if kept else box[-1][:0]

    def close(self) -> None:
        """Nothing is left on the model."""
