"""Scripts on transformers and nnsight, as users write them instead of a capture job.

Each contender takes prompts and returns, for each prompt, the generated ids (with the end token) and the
captured rows by module, [tokens that the model ran, width].
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BATCH = 16
Ids = tuple[int, ...]


@dataclass(frozen=True)
class Made:
    ids: Ids
    rows: dict[str, Tensor]


@dataclass(frozen=True)
class Setup:
    """One model and what is asked of all contenders."""

    hf: Any
    #: nnsight's wrapper of the same weights
    lm: Any
    #: modules whose inputs or outputs are kept, in execution order
    modules: Sequence[str]
    max_tokens: int
    eos: frozenset[int]
    pad: int
    #: prompts of a batch
    batch: int = BATCH

    def batches(self, prompts: Sequence[Ids]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Left-padded batches in order of length: places of the prompts, ids, mask."""
        order, device = sorted(range(len(prompts)), key=lambda i: len(prompts[i])), self.hf.device
        for at in range(0, len(order), self.batch):
            some = order[at : at + self.batch]
            width = max(len(prompts[i]) for i in some)
            ids = [[self.pad] * (width - len(prompts[i])) + list(prompts[i]) for i in some]
            mask = [[0] * (width - len(prompts[i])) + [1] * len(prompts[i]) for i in some]
            yield some, torch.tensor(ids, device=device), torch.tensor(mask, device=device)

    @property
    def options(self) -> dict[str, Any]:
        return {"do_sample": False, "max_new_tokens": self.max_tokens, "pad_token_id": self.pad}

    def answer(self, row: Sequence[int]) -> Ids:
        """A row of generated ids up to its end token."""
        end = next((i for i, token in enumerate(row) if token in self.eos), len(row) - 1)
        return tuple(row[: end + 1])

    def trimmed(self, prompt: Ids, width: int, ids: Ids, rows: dict[str, Tensor], place: int) -> Made:
        """One row of a batch, without padding and without what ran after its end."""
        start = width - len(prompt)
        stop = width + len(ids) - 1
        kept = {name: whole[place, start:stop].to("cpu", copy=True) for name, whole in rows.items()}
        return Made(ids, kept)


@contextmanager
def _hooks(setup: Setup) -> Iterator[dict[str, list[Tensor]]]:
    """Plain forward hooks that keep every output of the chosen modules."""
    kept: dict[str, list[Tensor]] = {name: [] for name in setup.modules}

    def hook(name: str) -> Callable[..., None]:
        return lambda _module, _args, output: kept[name].append(output.detach())

    handles = [setup.hf.get_submodule(n).register_forward_hook(hook(n)) for n in setup.modules]
    try:
        yield kept
    finally:
        for handle in handles:
            handle.remove()


def generate(setup: Setup, prompts: Sequence[Ids]) -> list[Made]:
    """transformers' `generate`; no capture."""
    made: dict[int, Made] = {}
    for some, ids, mask in setup.batches(prompts):
        out = setup.hf.generate(ids, attention_mask=mask, **setup.options)
        for place, i in enumerate(some):
            made[i] = Made(setup.answer(out[place, ids.shape[1] :].tolist()), {})
    return [made[i] for i in range(len(prompts))]


def plain_hooks(setup: Setup, prompts: Sequence[Ids]) -> list[Made]:
    """`generate` with plain forward hooks."""
    made: dict[int, Made] = {}
    for some, ids, mask in setup.batches(prompts):
        with _hooks(setup) as kept:
            out = setup.hf.generate(ids, attention_mask=mask, **setup.options)
        rows = {name: torch.cat(parts, dim=1) for name, parts in kept.items()}
        for place, i in enumerate(some):
            answer = setup.answer(out[place, ids.shape[1] :].tolist())
            made[i] = setup.trimmed(prompts[i], ids.shape[1], answer, rows, place)
    return [made[i] for i in range(len(prompts))]


def two_passes(setup: Setup, prompts: Sequence[Ids]) -> list[Made]:
    """`generate`, and then a forward over the whole texts that keeps the rows."""
    answers = [one.ids for one in generate(setup, prompts)]
    whole = [(*prompt, *ids[:-1]) for prompt, ids in zip(prompts, answers, strict=True)]
    made: dict[int, Made] = {}
    for some, ids, mask in setup.batches(whole):
        positions = (mask.cumsum(1) - 1).clamp_min(0)
        with _hooks(setup) as kept:
            setup.hf(ids, attention_mask=mask, position_ids=positions, use_cache=False, logits_to_keep=1)
        for place, i in enumerate(some):
            start = ids.shape[1] - len(whole[i])
            rows = {name: parts[0][place, start:].clone() for name, parts in kept.items()}
            made[i] = Made(answers[i], rows)
    return [made[i] for i in range(len(prompts))]


def nnsight_script(setup: Setup, prompts: Sequence[Ids]) -> list[Made]:
    """`lm.generate` with saved outputs in every step, as nnsight's documentation teaches it."""
    made: dict[int, Made] = {}
    lm = setup.lm
    for some, ids, mask in setup.batches(prompts):
        steps: list[list[Tensor]] = []
        result: list[Tensor] = []
        with lm.generate(eos_token_id=sorted(setup.eos), **setup.options) as tracer:
            with tracer.invoke(input_ids=ids, attention_mask=mask):
                _save_steps(lm, tracer, setup.modules, steps)
            with tracer.invoke():
                result.append(tracer.result)
        parts = zip(*steps, strict=True)
        rows = {name: torch.cat(own, dim=1) for name, own in zip(setup.modules, parts, strict=True)}
        for place, i in enumerate(some):
            answer = setup.answer(result[0][place, ids.shape[1] :].tolist())
            made[i] = setup.trimmed(prompts[i], ids.shape[1], answer, rows, place)
    return [made[i] for i in range(len(prompts))]


def _save_steps(lm: Any, tracer: Any, modules: Sequence[str], steps: list[list[Tensor]]) -> None:
    for _ in tracer.iter[:]:
        steps.append([lm.get(name).output.detach() for name in modules])


def continuous_batching(setup: Setup, prompts: Sequence[Ids]) -> list[Made]:
    """transformers' own continuous batching; no capture."""
    from transformers import GenerationConfig

    made: Any = GenerationConfig
    config = made(eos_token_id=sorted(setup.eos), **setup.options)
    out = setup.hf.generate_batch([list(prompt) for prompt in prompts], generation_config=config)
    ordered = [out[key] for key in sorted(out, key=lambda key: int(str(key).rpartition("_")[2]))]
    return [Made(setup.answer(one.generated_tokens), {}) for one in ordered]
