"""The traced forward: one request per pass, transformers' own cache, one nnsight trace per pass.

For models that the packed forward refuses, and the reference that it is held against. It has the packed
forward's interface, so the loop, the choice of tokens, edits, capture and delivery are the same.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from nnsight.intervention.util import first_input
from torch import Tensor
from transformers import DynamicCache

from worker.engine.capture.parts import Context, Part, in_pack
from worker.engine.capture.pool import Budget
from worker.engine.capture.taps import Taps
from worker.engine.locations import ModelHooks, Place, place_of
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
        known = inspect.signature(type(hooks.model.hf).forward).parameters
        self._recurrent = "cache_params" in known
        self._keeps_last = "logits_to_keep" in known
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
        context.place = DynamicCache(config=self.hooks.model.hf.config)
        return True

    def fork(self, source: Context, context: Context, tokens: int) -> None:
        """Never called: `forks` is False."""
        raise NotImplementedError

    def leave(self, context: Context) -> None:
        """Free a request's cache."""
        self._left += context.most
        context.place = None

    def run(self, parts: Sequence[Part], taps: Taps) -> Tensor:
        """Run one part; see `PackedForward.run`. After an error the cache is not what it was."""
        (part,) = parts
        model, context = self.hooks.model, part.context
        ids = torch.tensor([context.tokens[part.start : part.stop]], device=model.device)
        kept = list(in_pack(parts))
        inputs: dict[str, Any] = {
            "input_ids": ids,
            # nnsight adds a mask of the new tokens' length, which hides the cache: the mask must be given. A
            # state has no tokens to hide
            "attention_mask": torch.ones(
                1, part.count if self._recurrent else part.stop, dtype=torch.int64, device=model.device
            ),
            "cache_params" if self._recurrent else "past_key_values": context.place,
            "use_cache": True,
        }
        if self._keeps_last:
            inputs["logits_to_keep"] = max(1, len(kept))
        observer, box = _Observer(model.lm, taps), list[Tensor]()
        handle = model.hf.register_forward_hook(lambda _, __, output: box.append(output.logits[0]))
        try:
            tracing.forward(model, inputs, [observer], observer.modules)
        finally:
            handle.remove()
        return box[-1][-len(kept) :] if kept else box[-1][:0]

    def close(self) -> None:
        """Nothing is left on the model."""
