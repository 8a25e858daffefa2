"""Small models with random weights in both engines, and everything that a run of the streaming one gives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    OlmoConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from actograph.contract.specs import SamplingSpec
from worker.engine.engine import Engine
from worker.engine.model.load import wrap_model
from worker.engine.requests import BufferOptions, Generation, GenerationRequest, RowChunk, RowShaping
from worker.engine.runs import CapturePlan, RunPlan, RunRequest, RunStatistics
from worker.engine.streaming.engine import StreamingEngine

VOCABULARY = 96
#: one rounding of a stored dtype
_APART = {torch.bfloat16: 8e-3, torch.float16: 1e-3}
_IDS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}
_COMMON: dict[str, Any] = {
    **_IDS,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
}
_HEAD: dict[str, Any] = {"head_dim": 8}
_ALL_HEADS = {name: value for name, value in _COMMON.items() if name != "num_key_value_heads"}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": lambda: LlamaConfig(**_COMMON),
    "qwen2": lambda: Qwen2Config(**_COMMON),
    "qwen3": lambda: Qwen3Config(**_COMMON, **_HEAD),
    "mistral": lambda: MistralConfig(**_COMMON, **_HEAD, sliding_window=12),
    "gemma": lambda: GemmaConfig(**_COMMON, **_HEAD),
    "gemma2": lambda: Gemma2Config(**_COMMON, **_HEAD, sliding_window=12),
    "gpt_neox": lambda: GPTNeoXConfig(**_ALL_HEADS),
    "gpt2": lambda: GPT2Config(**_IDS, n_embd=32, n_layer=3, n_head=4, n_positions=160),
    "olmo": lambda: OlmoConfig(**_COMMON),
    "olmo2": lambda: Olmo2Config(**_COMMON),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **_COMMON,
        **_HEAD,
        num_experts=7,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        norm_topk_prob=True,
    ),
}


def build(config: Any, name: str, dtype: torch.dtype = torch.float32) -> Engine:
    """An engine around random weights, wide enough that tokens differ; token i is the text `<i>`."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
    model.to(dtype)
    words = Tokenizer(models.WordLevel({f"<{i}>": i for i in range(VOCABULARY)}, unk_token="<0>"))
    words.decoder = decoders.Fuse()
    wrap: Any = PreTrainedTokenizerFast
    return Engine(wrap_model(model, wrap(tokenizer_object=words, eos_token="<1>"), name=name))


@dataclass
class Kept:
    """One request's result."""

    generation: Generation
    chunks: dict[str, list[RowChunk]] = field(default_factory=dict)

    def rows(self, hook: str) -> torch.Tensor:
        return torch.cat([chunk.tensor for chunk in self.chunks[hook]])

    def tokens(self, hook: str) -> list[int]:
        """Token of each row."""
        found: list[int] = []
        for chunk in self.chunks[hook]:
            rows = chunk.tensor.shape[0]
            found += (
                chunk.tokens if chunk.tokens is not None else range(chunk.first_row, chunk.first_row + rows)
            )
        return found


class Desk:
    """Source, sink, results and control of a run; keeps everything.

    Args:
        arrivals: step at which each request arrives; all at the start by default.
    """

    def __init__(self, items: Sequence[RunRequest], arrivals: Sequence[int] = ()) -> None:
        self._waiting = list(zip(items, arrivals or [0] * len(items), strict=True))
        self.steps = 0
        self.kept: dict[str, Kept] = {}
        self.chunks: dict[str, dict[str, list[RowChunk]]] = {}
        self.live: dict[str, Sequence[int]] = {}
        self.lengths: list[dict[str, int]] = []  # tokens of each request after each step
        self.resets: list[str] = []
        self.stop_after: int | None = None
        self.dropped: set[str] = set()
        self.failing: set[str] = set()  # keys that the sink does not take

    @property
    def exhausted(self) -> bool:
        return not self._waiting

    def pull(self, room: int, *, idle: bool) -> Sequence[RunRequest]:
        now = self.steps
        if idle:  # time passes until the next one arrives
            now = max(now, min((step for _, step in self._waiting), default=0))
        ready = [item for item, step in self._waiting if step <= now][:room]
        self._waiting = [(item, step) for item, step in self._waiting if item not in ready]
        return ready

    def write(self, key: str, rows: Mapping[str, RowChunk]) -> None:
        if key in self.failing:
            raise OSError(f"no room for {key}")
        for hook, c in rows.items():
            copy = RowChunk(c.first_row, c.tensor.clone(), c.tokens, c.over, c.finite)
            self.chunks.setdefault(key, {}).setdefault(hook, []).append(copy)

    def reset(self, key: str) -> None:
        self.resets.append(key)
        self.chunks.pop(key, None)

    def done(self, request: GenerationRequest, generation: Generation) -> None:
        assert request.key not in self.kept
        self.kept[request.key] = Kept(generation, self.chunks.get(request.key, {}))

    def should_stop(self) -> bool:
        return self.stop_after is not None and self.steps >= self.stop_after

    def should_drop(self, key: str) -> bool:
        return key in self.dropped

    def started(self, request: GenerationRequest, generated_ids: Sequence[int]) -> None:
        self.live[request.key] = generated_ids

    def progressed(self, steps: int) -> None:
        self.steps = steps
        self.lengths.append({key: len(ids) for key, ids in self.live.items()})


@dataclass
class Pair:
    """One model in both engines."""

    traced: Engine
    streaming: StreamingEngine

    @property
    def hooks(self) -> tuple[str, ...]:
        """Every hook of the model."""
        return tuple(self.traced.structure.hooks)

    def run(
        self,
        items: Sequence[RunRequest | GenerationRequest],
        plan: RunPlan,
        *,
        most: int = 3,
        step_tokens: int = 16,
        arrivals: Sequence[int] = (),
        options: BufferOptions | None = None,
        desk: Desk | None = None,
    ) -> tuple[Desk, RunStatistics]:
        """Run requests through the streaming engine."""
        wrapped = [item if isinstance(item, RunRequest) else RunRequest(item) for item in items]
        desk = desk or Desk(wrapped, arrivals)
        counted = self.streaming.run(
            plan,
            source=desk,
            results=desk,
            control=desk,
            sink=desk,
            most=most,
            step_tokens=step_tokens,
            options=options or BufferOptions(),
        )
        return desk, counted

    def trace(self, request: GenerationRequest, plan: RunPlan) -> Kept:
        """Run one request alone through the traced engine."""
        desk = Desk([])
        capture = plan.capture
        (made,) = self.traced.generate(
            [request],
            sampling=plan.sampling,
            hooks=capture.hooks if capture else (),
            positions=capture.positions if capture else "all",
            dtype=capture.dtype if capture else "model",
            shaping=capture.shaping if capture else RowShaping(),
            sink=_Indexed(desk),
        )
        return Kept(made, desk.chunks.get("0", {}))


class _Indexed:
    """A sink of the traced engine in front of a desk."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def write(self, index: int, rows: Mapping[str, RowChunk]) -> None:
        self._desk.write(str(index), rows)

    def reset(self, index: int) -> None:
        self._desk.reset(str(index))


def assert_same(got: Kept, due: Kept) -> None:
    """Equal tokens and ends; rows of the same tokens within 1e-4, or one rounding of their dtype."""
    one, other = got.generation, due.generation
    assert one.error is None and other.error is None, (one.error, other.error)
    assert one.generated_ids == other.generated_ids
    assert one.finish_reason == other.finish_reason
    for mine, theirs in ((one.logprobs, other.logprobs), (one.prompt_logprobs, other.prompt_logprobs)):
        assert (mine is None) == (theirs is None)
        for a, b in zip(mine or (), theirs or (), strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                assert a.token_id == b.token_id
                assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
                assert [p for _, p in a.top] == pytest.approx([p for _, p in b.top], abs=1e-4)
    assert got.chunks.keys() == due.chunks.keys()
    for hook in due.chunks:
        rows, wanted = got.rows(hook), due.rows(hook)
        over = [chunk.over for chunk in (got.chunks[hook][-1], due.chunks[hook][-1])]
        assert over[0] == over[1], hook
        assert over[0] is not None or got.tokens(hook) == due.tokens(hook), hook
        assert rows.dtype == wanted.dtype and rows.shape == wanted.shape, hook
        if hook.startswith("expert_indices"):  # experts of one token have no order in some models
            rows, wanted = rows.sort(-1).values, wanted.sort(-1).values
        apart = _APART.get(rows.dtype, 1e-4)
        torch.testing.assert_close(rows, wanted, atol=apart, rtol=apart, equal_nan=True, msg=hook)


def prompts(lengths: Sequence[int], seed: int = 0) -> list[tuple[int, ...]]:
    """Random prompts without the end token."""
    draw = torch.Generator().manual_seed(seed)
    return [tuple(torch.randint(2, VOCABULARY, (n,), generator=draw).tolist()) for n in lengths]


def requests_of(texts: Sequence[tuple[int, ...]], **fields: Any) -> list[GenerationRequest]:
    """A request for each prompt, with seeds of their own."""
    return [
        GenerationRequest(key=f"s{i}", prompt_ids=ids, seed=100 + i, **fields) for i, ids in enumerate(texts)
    ]


def planned(
    hooks: Sequence[str] = (), *, capture: Mapping[str, Any] | None = None, **sampling: Any
) -> RunPlan:
    """A plan; 9 tokens where nothing else is said."""
    wanted = CapturePlan(hooks=tuple(hooks), **(capture or {})) if hooks else None
    return RunPlan(sampling=SamplingSpec(**{"max_tokens": 9, **sampling}), capture=wanted)
