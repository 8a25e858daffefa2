"""Verification at load: packed passes give the logits of the model's own forward.

Two long texts run beside short ones; the second takes its first tokens over from the first. They are longer
than every number of tokens in the config at which the model may change what it does: a window, a chunk, the
unit of a scale. If such a text would take too long, the masks of the passes must show the number as a window.
Masks are exact at any length.
"""

import inspect
import logging
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actograph.contract.row_selection import TokenRange
from worker.engine.attention_masks import UnknownAttention
from worker.engine.capture.pool import Pool
from worker.engine.messages import Edit, Request
from worker.engine.model import group
from worker.engine.model.device_errors import is_device_lost, is_out_of_memory
from worker.engine.model.kv_cache import kv_bytes_per_token
from worker.engine.model.loaded import LoadedModel
from worker.engine.model.memory import available_bytes
from worker.engine.model_state import ModelState
from worker.engine.packed.forward import PackedForward
from worker.engine.pass_hooks import PassHooks
from worker.engine.slot import Slot
from worker.engine.structure.comparison import alike
from worker.engine.variants import SlotVariants, Variant

log = logging.getLogger(__name__)

#: tokens of each short text that every pass runs: chunks, single tokens and late texts beside one another
_SHORT = ((16, 5, 1, 7), (3, 1, 1, 0), (1, 1, 1, 1), (0, 9, 1, 1))
#: tokens of a long text after the last switch
_BEYOND = 24
#: tokens at the end of each part whose logits are compared
_COMPARED = 32
#: operations of a verification, at most: some seconds
_MOST_OPERATIONS = {"cpu": 1e12, "cuda": 5e15}
#: tokens of the longest text
_LONGEST = 8192
#: the same for numbers that are hardly switches, and as a share of what the model's size allows
_LONGEST_FOR_ANY, _SHARE_FOR_ANY = 512, 8
#: largest share of the free memory for keys and values, and for scores of attention
_MEMORY_SHARE = 0.1
#: names of fields that may be a number of tokens at which the model changes what it does
_SWITCH = re.compile(r"window|chunk|span|block|local|floor|stride|period|context|len|original_max")
#: names of fields that are none
_NO_SWITCH = re.compile(r"(token_ids?|index|vocab_size)$")


@dataclass(frozen=True)
class VerificationTexts:
    """Texts that verify a model.

    Attributes:
        length: tokens of the longest one.
        beyond: fields that may be switches at a larger number of tokens, and that number.
    """

    length: int
    beyond: Sequence[tuple[str, int]]

    @property
    def tokens(self) -> int:
        """Tokens of all texts, and so of the arena."""
        return 2 * self.length + sum(map(sum, _SHORT))


def texts_for(model: LoadedModel) -> VerificationTexts:
    """The texts that verify a model: as long as its config asks for, and its size and device allow."""
    source, reach = _source(model), _reach(model)
    for_any = min(reach // _SHARE_FOR_ANY, _LONGEST_FOR_ANY)
    needed, beyond = _BEYOND, []
    for name, tokens in _numbers(model.text_config.to_dict()):
        if not _BEYOND < tokens < model.context_length:
            continue
        of_positions = name.startswith("rope")  # those that follow the length are refused by their kind
        may_switch = of_positions or (bool(_SWITCH.search(name)) and name in source)
        if tokens <= (reach if may_switch else for_any):
            needed = max(needed, tokens)
        elif may_switch and not of_positions:
            beyond.append((name, tokens))
    return VerificationTexts(min(needed + _BEYOND, model.context_length), beyond)


def _numbers(config: Mapping[Any, Any], within: str = "") -> Iterator[tuple[str, int]]:
    """Fields of a config with whole numbers; those of position schemes are called `rope...`."""
    for key, value in config.items():
        name = within or str(key)
        if _NO_SWITCH.search(name):
            continue
        if isinstance(value, Mapping):
            yield from _numbers(value, within=name if name.startswith("rope") else "")
        for one in value if isinstance(value, list | tuple) else [value]:
            if isinstance(one, int) and not isinstance(one, bool):
                yield name, one


def _source(model: LoadedModel) -> str:
    """Source of the model's code, which names the fields that it reads."""
    try:
        return inspect.getsource(sys.modules[type(model.hf).__module__])
    except (OSError, TypeError):  # it is not to be had: any field may be read
        return " ".join(name for name, _ in _numbers(model.text_config.to_dict()))


def _reach(model: LoadedModel) -> int:
    """Tokens of the longest text that is worth its time and memory."""
    parameters = sum(parameter.numel() for parameter in model.hf.parameters())
    operations = _MOST_OPERATIONS["cuda" if model.device.type == "cuda" else "cpu"]
    memory = _MEMORY_SHARE * group.least(available_bytes(model.device))
    heads = int(getattr(model.text_config, "num_attention_heads", 1) or 1)
    return int(
        min(
            operations / (8 * parameters),  # two for each parameter; two texts run packed and whole
            memory / (2 * max(1, kv_bytes_per_token(model))),
            math.sqrt(memory / (8 * heads)),
            _LONGEST,
        )
    )


@dataclass(eq=False)
class _TextBeingVerified:
    """A text while it is verified.

    Attributes:
        counts: tokens that each pass runs.
        start: first tokens that it takes over from the first text before the second pass.
        compared: numbers of the tokens whose logits are compared.
    """

    slot: Slot
    counts: tuple[int, ...]
    start: int = 0
    compared: list[int] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)


def _texts(length: int, vocabulary: int) -> list[_TextBeingVerified]:
    """The long texts, then the short ones; every pass of each long one ends elsewhere."""
    half = length // 2
    passes = [(half, length - half - 8, 1, 7), (0, length - half - 5, 1, 1), *_SHORT]
    made: list[_TextBeingVerified] = []
    for number, counts in enumerate(passes):
        start = half if number == 1 else 0
        tokens = [(7 * i * i + 11 * i + 5 * (number + 1)) % vocabulary for i in range(start + sum(counts))]
        if start:
            tokens[:start] = made[0].slot.tokens[:start]
        request = Request(key=str(number), prompt_ids=tuple(tokens), seed=0, max_tokens=0)
        made.append(_TextBeingVerified(Slot(request), counts, start))
    return made


def verify(forward: PackedForward) -> None:
    """Run a few packed passes and compare their logits.

    Raises:
        UnknownAttention: a pass fails, its logits differ from the model's own, or a number of the config is
            no verified window and too large for a text.
    """
    model = forward.hooks.model
    needed = texts_for(model)
    if needed.tokens > forward.arena.tokens:
        raise UnknownAttention(f"an arena of {forward.arena.tokens} tokens is too small to verify it")
    texts = _texts(needed.length, int(model.text_config.vocab_size))
    varied = texts[0].slot
    varied.variants = SlotVariants(
        replace(varied.request, variants=_variants(forward, varied)), forward.hooks
    )
    at_hooks = PassHooks(forward.hooks, Pool(model.device, forward.budget, forward.budget))
    placed = [text for text in texts if forward.place(text.slot)]
    try:
        with torch.inference_mode():
            for number in range(len(texts[0].counts)):
                _run(forward, texts, number, at_hooks)
            for text in texts:
                _compare(model, text)
            forward.varies = _reads_variants(forward, varied, at_hooks)
    except Exception as error:
        if isinstance(error, UnknownAttention) or is_out_of_memory(error) or is_device_lost(error):
            raise
        raise UnknownAttention(f"a packed pass fails ({type(error).__name__}: {error})") from error
    finally:
        for text in placed:
            forward.leave(text.slot)
        forward.close()
    for name, tokens in needed.beyond:
        if tokens not in forward.windows:
            raise UnknownAttention(
                f"its {name} of {tokens} tokens is no window of its masks, and the longest text that could "
                f"be verified has {needed.length} tokens"
            )


def _variants(forward: PackedForward, slot: Slot) -> tuple[tuple[Edit, ...], ...]:
    """Variants of a text: other rows in the first, the middle and the last layer, at its last tokens."""
    structure, prompt, path = forward.hooks.structure, slot.prompt, forward.hooks.model.layers_path
    layers = sorted({0, structure.num_layers // 2, structure.num_layers - 1})
    row = np.cos(np.arange(structure.hidden_size, dtype=np.float32))
    tokens = [TokenRange(start=one, stop=one + 1) for one in (prompt - 4, prompt - 2)]
    return tuple(
        (Edit(hook=f"{path}.{layer}.output", op="replace", vector=row, positions=one),)
        for layer in layers
        for one in tokens
    )


def _reads_variants(forward: PackedForward, slot: Slot, at_hooks: PassHooks) -> bool:
    """Whether variants of a text that was read have the logits of a reading with their edits.

    Its keys and values are not those of the text any more afterwards.
    """
    variants, made = slot.variants, list[tuple[Variant, Tensor]]()
    assert variants is not None
    try:
        while variants.left:
            batch = variants.take(slot.prompt)
            made += zip(batch, forward.read_variants(slot, batch, at_hooks).clone(), strict=True)
    except Exception as error:
        if is_out_of_memory(error) or is_device_lost(error):
            raise
        log.info("%s reads no variants of prompts: %s", forward.hooks.model.name, error)
        return False
    slot.variants, slot.first, slot.logits, slot.stop = None, 0, 1, slot.prompt
    state = ModelState(forward.hooks)
    # what a reading spoils comes after what the next one takes over
    for variant, logits in sorted(made, key=lambda pair: -pair[0].first):
        request = replace(slot.request, edits=variant.edits)
        slot.computed = variant.first
        slot.writes = state.edits(request, []).writes(variant.first, slot.prompt)
        due = forward.run([slot], at_hooks)
        if not alike(logits[None], due, due):
            log.info("%s reads no variants of prompts: their logits differ", forward.hooks.model.name)
            return False
    return True


def _run(
    forward: PackedForward, texts: Sequence[_TextBeingVerified], number: int, at_hooks: PassHooks
) -> None:
    """Run the next tokens of each text in one pass, and keep their last logits."""
    chosen = sorted((text for text in texts if text.counts[number]), key=lambda text: text.counts[number] > 1)
    place = 0
    for text in chosen:
        slot, count = text.slot, text.counts[number]
        if text.start > slot.computed:
            forward.fork(texts[0].slot, slot, text.start)
            slot.computed = text.start
        slot.stop, slot.first, slot.logits = slot.computed + count, place, min(count, _COMPARED)
        place += count
    logits, at = forward.run([text.slot for text in chosen], at_hooks), 0
    for text in chosen:
        slot = text.slot
        text.compared += range(slot.stop - slot.logits, slot.stop)
        text.logits.append(logits[at : at + slot.logits].clone())
        at += slot.logits
        slot.computed = slot.stop


def _compare(model: LoadedModel, text: _TextBeingVerified) -> None:
    """Hold the logits of a text against a forward of the whole. Raises UnknownAttention if they differ."""
    ids = torch.tensor([text.slot.tokens], device=model.device)
    keep = torch.tensor(text.compared, device=model.device)
    due = model.hf(input_ids=ids, use_cache=False, logits_to_keep=keep).logits[0]
    if not alike(torch.cat(text.logits), due, due):
        raise UnknownAttention(f"packed logits differ for a text of {ids.shape[1]} tokens")
