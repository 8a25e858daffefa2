"""A run's source, control, results and sink in one, in memory; and models for it."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoTokenizer, Gemma2Config, GPT2Config, LlamaConfig, Qwen3MoeConfig

from actograph.contract.row_selection import Positions
from tests.support.architectures import COMMON, IDS, random_model
from tests.support.local_engine import tensor_of
from tests.support.token_choosers import rule_for
from worker.engine.capture.budget import Budget
from worker.engine.locations import ModelHooks
from worker.engine.messages import Capture, Generation, Request, Rows, RunStatistics
from worker.engine.model.load import load_model
from worker.engine.packed.forward import PackedForward
from worker.engine.packed.registration import layer_shapes
from worker.engine.stream.loop import Loop
from worker.engine.structure.structure import discover
from worker.engine.traced.forward import TracedForward
from worker.sample.token_rules import named as name_of

_SHAPE: dict[str, Any] = COMMON | {"num_hidden_layers": 2, "max_position_embeddings": 512, "head_dim": 8}
_EXPERTS: dict[str, Any] = {"num_experts": 7, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
RANDOM: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**_SHAPE),
    "gpt2": lambda: GPT2Config(**IDS, n_embd=32, n_layer=2, n_head=4, n_positions=512),
    "gemma2": lambda: Gemma2Config(**_SHAPE, sliding_window=24, attn_logit_softcapping=5.0),
    "qwen3_moe": lambda: Qwen3MoeConfig(**_SHAPE, **_EXPERTS, mlp_only_layers=[1], norm_topk_prob=True),
}
TRAINED = ("tiny-qwen3", "stories260k")


@cache
def stream_model(shared: Path, name: str) -> ModelHooks:
    """A trained tiny model, or random weights in a known shape, with its hooks."""
    torch.set_num_threads(1)
    if name in TRAINED:
        return discover(load_model(str(shared / "models" / name), device="cpu", name=name))
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "stories260k")
    return discover(random_model(RANDOM[name](), tokenizer, name))


def prompts(lengths: Sequence[int], seed: int = 0, vocabulary: int = 512) -> list[tuple[int, ...]]:
    """Random token ids."""
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randint(3, vocabulary, (n,), generator=generator).tolist()) for n in lengths]


def ask(
    key: str, prompt: Sequence[int], max_tokens: int, *, keep: Positions | None = None, **changes: Any
) -> Request:
    """A request.

    Args:
        keep: tokens of which it keeps rows, as a host asks for them; None: as its capture says.
        changes: further fields.
    """
    made = Request(key=key, prompt_ids=tuple(prompt), max_tokens=max_tokens, **({"seed": 0} | changes))
    if keep is None or made.capture is None:
        return made
    if (named := name_of(keep)) is not None:
        return replace(made, capture=replace(made.capture, positions=named))
    return replace(made, rule=rule_for(prompt, keep))


class StreamRun:
    """Feeds requests to a run and keeps what comes out.

    Args:
        arrivals: key -> turn of the loop at which a request arrives; 0 if absent.
    """

    #: whether the loop reads tokens late, if a run does not say
    late: bool | None = None

    def __init__(self, requests: Sequence[Request], arrivals: Mapping[str, int] | None = None) -> None:
        self.waiting, self._arrivals = list(requests), arrivals or {}
        self.turn = 0
        self.made: dict[str, Generation] = {}
        self.chunks: dict[str, dict[str, list[Rows]]] = {}
        self.writes = 0
        self.seen: dict[str, int] = {}  # key -> turn in which it started
        self.live: dict[str, Sequence[int]] = {}
        self.drops: set[str] = set()
        self.stop = False
        self.on_beat: Callable[[], None] = lambda: None
        self.on_write: Callable[[str], None] = lambda key: None
        self.on_start: Callable[[str], None] = lambda key: None
        self.on_done: Callable[[str], None] = lambda key: None
        self.statistics = RunStatistics()
        #: requests that have a place now
        self.running: Callable[[], int] = lambda: 0

    def run(
        self,
        hooks: ModelHooks,
        kind: Literal["packed", "traced"] = "packed",
        *,
        arena: int = 1 << 13,
        spare: int = 0,
        rows: int = 1 << 30,
        prepare: Callable[[PackedForward], None] = lambda forward: None,
        **options: Any,
    ) -> "StreamRun":
        """Run all requests.

        Args:
            arena: tokens of the forward.
            rows: bytes for captured rows.
            prepare: changes a packed forward before the run.
        """
        sizes = sum(s.token_bytes for s in layer_shapes(hooks.model)) if kind == "packed" else 1
        budget = Budget(rows + sizes * arena)
        forward: Any
        if kind == "packed":
            forward = PackedForward(hooks, budget, tokens=arena, spare=spare)
            prepare(forward)
        else:
            forward = TracedForward(hooks, budget, tokens=arena, token_bytes=sizes)
        self.run_on(forward, budget, **options)
        assert budget.used == sizes * arena  # whatever happened, all rows were given back
        return self

    def run_on(self, forward: Any, rows: Budget, **options: Any) -> "StreamRun":
        """The same with this forward and this budget of rows."""
        options = {"late": self.late} | options
        loop = Loop(forward, rows, source=self, control=self, results=self, sink=self, **options)
        self.statistics, self.running = loop.statistics, lambda: len(loop._slots.running)
        loop.run()
        return self

    # source

    @property
    def exhausted(self) -> bool:
        return not self.waiting

    def pull(self, room: int, *, urgent: int, wait: float) -> list[Request]:
        taken = []
        left = {True: urgent, False: room}
        for item in list(self.waiting):
            if self._arrivals.get(item.key, 0) <= self.turn and left[item.priority] > 0:
                left[item.priority] -= 1
                self.waiting.remove(item)
                taken.append(item)
        return taken

    # control

    def stopped(self) -> bool:
        return self.stop

    def dropped(self, key: str) -> bool:
        return key in self.drops

    def beat(self) -> None:
        self.turn += 1
        self.on_beat()

    # results and sink

    def started(self, key: str, generated_ids: Sequence[int]) -> None:
        self.on_start(key)
        self.live[key], self.seen[key] = generated_ids, self.turn

    def done(self, generation: Generation) -> None:
        self.on_done(generation.key)
        assert generation.key not in self.made
        self.made[generation.key] = generation

    def write(self, key: str, rows: Mapping[str, Rows]) -> None:
        self.on_write(key)
        self.writes += 1
        for hook, chunk in rows.items():
            self.chunks.setdefault(key, {}).setdefault(hook, []).append(chunk.copied())

    def wait_for_beats(self, count: int, into: list[int]) -> None:
        """Hold the delivery thread up until the engine's has beaten so often."""
        begun, deadline = self.turn, time.monotonic() + 60
        while self.turn < begun + count:
            assert time.monotonic() < deadline, "no heartbeat"
            threading.Event().wait(0.005)
        into.append(self.turn - begun)

    # what came out

    @property
    def errors(self) -> dict[str, BaseException]:
        return {key: made.error for key, made in self.made.items() if made.error is not None}

    def ids(self, key: str) -> tuple[int, ...]:
        return self.made[key].generated_ids

    def rows(self, key: str, hook: str) -> Tensor:
        return torch.cat([tensor_of(chunk) for chunk in self.chunks[key][hook]])

    def tokens(self, key: str, hook: str) -> list[int]:
        """Token number of each row."""
        return [
            token
            for c in self.chunks[key][hook]
            for token in (range(c.first_row, c.first_row + c.count) if c.tokens is None else c.tokens)
        ]


def plan_of(hooks: ModelHooks, **changes: Any) -> Capture:
    """A capture of every hook of a model."""
    return Capture(hooks=tuple(hooks.structure.hooks), **changes)
