"""Rehearsal at load, as jobs run the model: a padded batch, a step with the cache, prefill.

The dry forward finds the tensors. Their numbers may still differ in a job: a recurrent state may include the
padding, positions may count the padding, a model without a cache runs all tokens in every step.
So the rehearsal generates one step from a few prompts, reads them once more, and compares every location
with a forward pass over each prompt alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from actograph.contract.errors import ModelRefused
from actograph.contract.specs import SamplingSpec
from worker.engine.locations import Place, place_of
from worker.engine.model.loaded import LoadedModel
from worker.engine.requests import GenerationRequest
from worker.engine.structure.dry_forward import DryForward, first_tensor, tried, watching
from worker.engine.tokens.model_inputs import generation_inputs, padded_inputs
from worker.engine.tokens.stopping import RowTracker

# Tokens of the prompts of each batch. One of a single token is a batch of its own: a recurrent model may
# take it for a step and go on from the state that the generation before it left
_BATCHES = ((9, 4), (4,), (1,))
# Largest difference from the undivided forward, as the median over a row's channels, relative to each
# channel's usual size. Rounding makes 1e-6 of it in float32 and up to a few hundredths in
# half precision; another position or a state that took up padding makes a half and more.
_APART, _APART_HALF = 1e-2, 0.2
_HALF = (torch.bfloat16, torch.float16)

_WITH_CACHE = "generating a token at a time gives other numbers than one forward pass over all of them"
_READ = "a padded text that is read gives other numbers than the same text alone, although it has no padding"
_SHAPE = "generating a token at a time does not show one row of a fixed width for each token"

_Pass = dict[str, torch.Tensor]  # tensors of one forward pass, by location


@dataclass
class Rehearsal:
    """Results of a rehearsal.

    Attributes:
        faults: location -> why its rows cannot be captured.
        padded: locations whose rows are others with padding before the prompt.
        compared: locations whose numbers were compared.
    """

    faults: dict[str, str] = field(default_factory=dict)
    padded: set[str] = field(default_factory=set)
    compared: set[str] = field(default_factory=set)


def rehearse(model: LoadedModel, forward: DryForward) -> Rehearsal:
    """Run batches as jobs do, and compare them with forwards over each prompt alone.

    Raises:
        ModelRefused: the model fails; the message says where.
    """
    found = Rehearsal()
    with torch.inference_mode(), _watching(model, [visit.location for visit in forward.visits]) as seen:
        generations = [_generated(model, lengths, seen) for lengths in _BATCHES]
        for lengths, (prompts, step, texts) in zip(_BATCHES, generations, strict=True):
            read, alone = _read(model, texts, seen)
            _compare(forward, lengths, _Passes(prompts, step, read, alone), found)
    return found


def _requests(model: LoadedModel, lengths: Sequence[int]) -> list[GenerationRequest]:
    vocabulary = int(model.text_config.vocab_size)
    ids = [(7 * i + 3) % vocabulary for i in range(max(lengths))]
    return [GenerationRequest(key=str(n), prompt_ids=tuple(ids[-n:]), seed=0) for n in lengths]


def _generated(
    model: LoadedModel, lengths: Sequence[int], seen: "_Seen"
) -> tuple[_Pass, _Pass, list[tuple[int, ...]]]:
    """Tensors of the prompts, tensors of the next token, and the prompts with that token."""
    hf: Any = model.hf
    requests = _requests(model, lengths)
    tracker = RowTracker(
        rows=len(lengths),
        max_tokens=2,
        eos_ids=(),
        stops=None,
        should_stop=lambda: False,
        on_step=None,
        device=model.device,
    )
    # even if the model would end: one token runs after the prompt
    inputs = generation_inputs(model, requests, SamplingSpec(max_tokens=2), tracker) | {"min_new_tokens": 2}
    seen.passes.clear()
    tried(model, "generates", lambda: hf.generate(**inputs))
    if len(seen.passes) != 2:
        raise ModelRefused(
            f"{model.name}: {type(hf).__name__} runs {len(seen.passes)} times to generate 2 tokens; "
            "this model is not supported"
        )
    texts = [(*r.prompt_ids, tokens[0]) for r, tokens in zip(requests, tracker.tokens, strict=True)]
    return seen.passes[0], seen.passes[1], texts


def _read(model: LoadedModel, texts: Sequence[tuple[int, ...]], seen: "_Seen") -> tuple[_Pass, list[_Pass]]:
    """Tensors of the padded prompts without a cache, and of each whole text alone."""
    hf: Any = model.hf
    inputs = padded_inputs(model, _requests(model, [len(text) - 1 for text in texts]))
    seen.passes.clear()
    tried(model, "reads padded texts", lambda: hf(**inputs))
    for text in texts:
        ids = torch.tensor([text], device=model.device)
        hf(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    read, *alone = seen.passes
    return read, alone


class _Passes(NamedTuple):
    """Tensors of each forward pass, by location."""

    prompts: _Pass  # of the padded batch, with a cache
    step: _Pass  # the token after each prompt
    read: _Pass  # the padded batch, without a cache
    alone: Sequence[_Pass]  # each prompt and the token after it


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

    with watching(model, before, after):
        yield seen


def _compare(forward: DryForward, lengths: Sequence[int], passes: _Passes, found: Rehearsal) -> None:
    padded = max(lengths)
    for visit in forward.visits:
        location, width, flat = visit.location, visit.width, visit.flat
        if location in found.faults:
            continue
        tail = 1 if location in forward.tail_only else padded
        prompts = _batch(passes.prompts.get(location), tail, width, flat=flat)
        step = _batch(passes.step.get(location), 1, width, flat=flat)
        read = _batch(passes.read.get(location), padded, width, flat=flat)
        whole = [
            _batch(one.get(location), length + 1, width, flat=flat)
            for one, length in zip(passes.alone, lengths, strict=True)
        ]
        if prompts is None or step is None or read is None or None in whole:
            found.faults[location] = _SHAPE
            continue
        if not visit.value.is_floating_point():
            continue
        found.compared.add(location)
        for row, (length, undivided) in enumerate(zip(lengths, whole, strict=True)):
            assert undivided is not None
            expected = undivided[0]
            ran = torch.cat([prompts[row, -min(tail, length) :], step[row]])
            with_cache = _alike(ran, expected[-len(ran) :], expected)
            as_text = _alike(read[row, -length:], expected[:length], expected)
            if length < padded and not (with_cache and as_text):
                found.padded.add(location)
            elif not with_cache:
                found.faults[location] = _WITH_CACHE
            elif not as_text:
                found.faults[location] = _READ


def _batch(tensor: torch.Tensor | None, tokens: int, width: int, *, flat: bool) -> torch.Tensor | None:
    """The tensor as [batch, tokens, width]; None if its shape does not allow that."""
    if tensor is None:
        return None
    if flat:
        if tensor.ndim < 2 or tensor.shape[0] % tokens:
            return None
        tensor = tensor.reshape(-1, tokens, *tensor.shape[1:])
    if tensor.ndim < 3 or tensor.shape[1] != tokens or tensor[0, 0].numel() != width:
        return None
    return tensor.flatten(2)


def _alike(rows: torch.Tensor, expected: torch.Tensor, all_rows: torch.Tensor) -> bool:
    """Whether rows [n, width] equal the expected ones except for rounding.

    All of them in float32. In half precision most of them: a router may send single tokens to another expert.
    """
    common = all_rows.double().square().mean(dim=0).sqrt()
    apart = (rows.double() - expected.double()).abs() / common.clamp_min(1e-30)
    apart = apart.masked_fill(~expected.isfinite(), 0).nan_to_num(nan=torch.inf)
    by_row = apart.median(dim=-1).values
    if rows.dtype in _HALF:
        return bool(by_row.median() <= _APART_HALF)
    return bool(by_row.max() <= _APART)
