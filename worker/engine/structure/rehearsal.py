"""Rehearsal at load, as jobs run the model: prompts and a step with the cache, each request alone.

The dry forward finds the tensors. Their numbers may still differ in a job: a state may be left over from
another request, positions may count from the pass on, a model without a cache sees one token alone. So the
rehearsal runs a few prompts, one more token each with the cache, and the prompts once more for all their
logits. It compares every location with a forward pass over each whole text.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from worker.engine.locations import Place, Side, place_of
from worker.engine.model.loaded import LoadedModel
from worker.engine.structure.comparison import alike
from worker.engine.structure.dry_forward import DryForward, first_tensor, tried, watching
from worker.engine.tokens.model_inputs import cached_inputs, new_cache

# Tokens of the prompts. A recurrent model may take a prompt of a single token for a step and go on from the
# state that the request before it left
_LENGTHS = (9, 4, 1)

_WITH_CACHE = "generating a token at a time gives other numbers than one forward pass over all of them"
_READ = "a text that is read with all its logits gives other numbers than one forward pass"
_SHAPE = "generating a token at a time does not show one row of a fixed width for each token"

_Pass = dict[str, torch.Tensor]  # tensors of one forward pass, by location


@dataclass
class Rehearsal:
    """Results of a rehearsal.

    Attributes:
        faults: location -> why its rows cannot be captured.
        compared: locations whose numbers were compared.
    """

    faults: dict[str, str] = field(default_factory=dict)
    compared: set[str] = field(default_factory=set)


def rehearse(model: LoadedModel, forward: DryForward) -> Rehearsal:
    """Run prompts as jobs do, and compare them with forwards over each whole text.

    Raises:
        ModelRefused: the model fails; the message says where.
    """
    vocabulary = int(model.text_config.vocab_size)
    ids = [(7 * i + 3) % vocabulary for i in range(max(_LENGTHS) + 1)]
    texts = [ids[-length - 1 :] for length in _LENGTHS]
    found = Rehearsal()
    with torch.inference_mode(), _watching(model, [visit.location for visit in forward.visits]) as seen:
        generated = [tried(model, "generates", partial(_generated, model, text, seen)) for text in texts]
        for text, (prompt, step) in zip(texts, generated, strict=True):
            read, whole = tried(model, "reads a text", partial(_read, model, text, seen))
            _compare(forward, len(text) - 1, _Passes(prompt, step, read, whole), found)
    return found


def _generated(model: LoadedModel, text: Sequence[int], seen: "_Seen") -> list[_Pass]:
    """Tensors of the prompt, and of the last token with the prompt's cache."""
    hf: Any = model.hf
    cache = new_cache(model)
    seen.passes.clear()
    hf(**cached_inputs(model, text[:-1], cache))
    hf(**cached_inputs(model, text[-1:], cache, computed=len(text) - 1))
    return list(seen.passes)


def _read(model: LoadedModel, text: Sequence[int], seen: "_Seen") -> list[_Pass]:
    """Tensors of the prompt with all its logits, and of the whole text without a cache."""
    hf: Any = model.hf
    seen.passes.clear()
    hf(**cached_inputs(model, text[:-1], new_cache(model), logits=len(text) - 1))
    ids = torch.tensor([list(text)], device=model.device)
    hf(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    return list(seen.passes)


class _Passes(NamedTuple):
    """Tensors of each forward pass, by location."""

    prompt: _Pass
    step: _Pass  # the token after the prompt
    read: _Pass  # the prompt with all its logits
    whole: _Pass  # prompt and token


class _Seen:
    """The tensors of each forward pass, by location."""

    def __init__(self) -> None:
        self.passes: list[_Pass] = []

    def note(self, location: str, value: Any) -> None:
        tensor = first_tensor(value)
        if isinstance(tensor, torch.Tensor):
            self.passes[-1][location] = tensor.clone()


@contextmanager
def _watching(model: LoadedModel, locations: Sequence[str]) -> Iterator[_Seen]:
    """Keep the tensors at these locations; a forward of the model itself begins a pass."""
    seen = _Seen()
    by_path: dict[str, list[tuple[str, Place]]] = {}
    for location in locations:
        place = place_of(location)
        by_path.setdefault(place.path, []).append((location, place))

    def before(path: str, given: Sequence[Any]) -> None:
        if not path:
            seen.passes.append({})
        for location, place in by_path.get(path, ()):
            if place.side == "input" and given:
                seen.note(location, given[0])

    def after(path: str, given: Sequence[Any], output: Any) -> None:
        for location, place in by_path.get(path, ()):
            if place.side == "output":
                seen.note(location, output[place.part] if place.part else output)

    def showed(path: str, side: Side, tensor: torch.Tensor) -> None:
        for location, place in by_path.get(path, ()):
            if place.side == side:
                seen.note(location, tensor)

    with watching(model, before, after, showed):
        yield seen


def _compare(forward: DryForward, length: int, passes: _Passes, found: Rehearsal) -> None:
    for visit in forward.visits:
        location, width, flat = visit.location, visit.width, visit.flat
        if location in found.faults:
            continue
        tail = 1 if location in forward.tail_only else length
        prompt = _rows(passes.prompt.get(location), tail, width, flat=flat)
        step = _rows(passes.step.get(location), 1, width, flat=flat)
        read = _rows(passes.read.get(location), length, width, flat=flat)
        whole = _rows(passes.whole.get(location), length + 1, width, flat=flat)
        if prompt is None or step is None or read is None or whole is None:
            found.faults[location] = _SHAPE
            continue
        if not visit.value.is_floating_point():
            continue
        found.compared.add(location)
        if not alike(torch.cat([prompt, step]), whole[-tail - 1 :], whole):
            found.faults[location] = _WITH_CACHE
        elif not alike(read, whole[:length], whole):
            found.faults[location] = _READ


def _rows(tensor: torch.Tensor | None, tokens: int, width: int, *, flat: bool) -> torch.Tensor | None:
    """The tensor as [tokens, width]; None if its shape does not allow that."""
    if tensor is None:
        return None
    if flat:
        tensor = tensor[None]
    if tensor.ndim < 3 or tensor.shape[:2] != (1, tokens) or tensor[0, 0].numel() != width:
        return None
    return tensor[0].flatten(1)
