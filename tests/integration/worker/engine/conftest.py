"""Small real models, engines around them, a sink that keeps everything, and an independent reference."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen3Config,
)

from actograph.contract.row_selection import NamedPositions
from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import generate
from worker.engine.engine import Engine
from worker.engine.model.load import load_model, wrap_model
from worker.engine.requests import (
    EarlierRows,
    Generation,
    GenerationRequest,
    RowChunk,
    RowShaping,
    TokenLogprobs,
)
from worker.engine.runs import RunOptions

SHAPES: dict[str, Any] = {
    "llama": LlamaConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "mistral": MistralConfig,
}
TRAINED = ("tiny-qwen3", "stories260k")


class KeepingSink:
    """Joins the chunks of each sample; can fail for chosen samples."""

    def __init__(self, fail: Sequence[int] = ()) -> None:
        self.chunks: dict[int, dict[str, list[RowChunk]]] = {}
        self.fail = set(fail)

    def write(self, index: int, rows: Mapping[str, RowChunk]) -> None:
        if index in self.fail:
            raise OSError(f"no room for sample {index}")
        for hook, chunk in rows.items():
            self.chunks.setdefault(index, {}).setdefault(hook, []).append(chunk)

    def first_row(self, index: int, hook: str) -> int:
        return self.chunks[index][hook][0].first_row

    def rows(self, index: int, hook: str) -> torch.Tensor:
        return torch.cat([c.tensor for c in self.chunks[index][hook]])


@dataclass(frozen=True, kw_only=True)
class Way:
    """How a batch is run, and how its members are held against their runs alone."""

    sampling: SamplingSpec = field(default_factory=lambda: SamplingSpec(max_tokens=14))
    hooks: Sequence[str] = ("resid_post.0", "mlp_in.1", "attn_out.1", "logits")
    positions: NamedPositions = "all"
    shaping: RowShaping = field(default_factory=RowShaping)
    options: RunOptions = field(default_factory=RunOptions)
    dtype: Any = "model"

    def run(
        self, engine: Engine, requests: Sequence[GenerationRequest]
    ) -> tuple[list[Generation], KeepingSink]:
        sink = KeepingSink()
        made = generate(
            engine,
            requests,
            sampling=self.sampling,
            hooks=self.hooks,
            positions=self.positions,
            dtype=self.dtype,
            shaping=self.shaping,
            sink=sink,
            options=self.options,
        )
        return made, sink

    def assert_alone(self, engine: Engine, requests: Sequence[GenerationRequest]) -> list[Generation]:
        """Every member of the batch equals its run alone; returns what the batch made."""

        def fresh(request: GenerationRequest) -> GenerationRequest:  # a run fills what carries sums
            return replace(request, earlier=None if request.earlier is None else EarlierRows())

        together, sink = self.run(engine, [fresh(request) for request in requests])
        for i, request in enumerate(requests):
            (alone,), own = self.run(engine, [fresh(request)])
            assert together[i].error is None and alone.error is None, i
            assert together[i].generated_ids == alone.generated_ids, i
            assert together[i].finish_reason == alone.finish_reason, i
            self.assert_logprobs(together[i].logprobs, alone.logprobs)
            self.assert_logprobs(together[i].prompt_logprobs, alone.prompt_logprobs)
            self.assert_rows(sink, i, own)
        return together

    @staticmethod
    def assert_logprobs(
        got: Sequence[TokenLogprobs | None] | None, want: Sequence[TokenLogprobs | None] | None
    ) -> None:
        assert (got is None) == (want is None)
        for one, other in zip(got or (), want or (), strict=True):
            if one is None or other is None:
                assert one is other
                continue
            assert one.token_id == other.token_id
            assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
            assert [p for _, p in one.top] == pytest.approx([p for _, p in other.top], abs=1e-4)

    @classmethod
    def assert_rows(cls, sink: KeepingSink, sample: int, wanted: KeepingSink, alone: int = 0) -> None:
        """The same rows of the same tokens; float32 within 1e-4."""
        kept, due = sink.chunks.get(sample, {}), wanted.chunks.get(alone, {})
        assert kept.keys() == due.keys(), sample
        for hook in due:
            tokens, over, rows = cls.rows_of(sink, sample, hook)
            assert (tokens, over) == cls.rows_of(wanted, alone, hook)[:2], (sample, hook)
            other, exact = wanted.rows(alone, hook), 1e-4
            assert rows.dtype == other.dtype and rows.shape == other.shape, (sample, hook)
            if hook.endswith(".kurtosis"):  # of a spread that rounding alone makes it is anything
                channels, exact = cls._varies(wanted, alone, hook.removesuffix(".kurtosis")), 1e-3
                rows, other = rows.where(channels, 0.0), other.where(channels, 0.0)
            message = f"sample {sample}, {hook}"
            torch.testing.assert_close(rows, other, atol=exact, rtol=exact, equal_nan=True, msg=message)

    @staticmethod
    def _varies(sink: KeepingSink, sample: int, hook: str) -> torch.Tensor:
        variance, low, high = (sink.rows(sample, f"{hook}.{name}") for name in ("variance", "min", "max"))
        return variance.sqrt() > 1e-4 * low.abs().maximum(high.abs())

    @staticmethod
    def rows_of(
        sink: KeepingSink, sample: int, hook: str
    ) -> tuple[list[int] | int, int | None, torch.Tensor]:
        """The tokens of a hook's rows or the first one's number, how many were summed up, the rows."""
        chunks = sink.chunks[sample][hook]
        tokens = [token for chunk in chunks for token in chunk.tokens or ()]
        first = chunks[0].first_row if chunks[0].tokens is None else tokens
        return first, chunks[-1].over, sink.rows(sample, hook)


def random_engine(config: Any, tokenizer: PreTrainedTokenizerBase, name: str) -> Engine:
    """An engine around random weights, wide enough that the tokens differ."""
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
    return Engine(wrap_model(model, tokenizer, name=name))


@pytest.fixture(scope="session")
def engine_of(shared: Path) -> Callable[[str], Engine]:
    """Model name -> its engine: `tiny-qwen3`, `stories260k`, or random weights in a known shape."""
    torch.set_num_threads(1)
    made: dict[str, Engine] = {}

    def make(name: str) -> Engine:
        if name not in made:
            if name in TRAINED:
                made[name] = Engine(load_model(str(shared / "models" / name), device="cpu", name=name))
            else:
                tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "stories260k")
                config = SHAPES[name](
                    hidden_size=32,
                    intermediate_size=48,
                    num_hidden_layers=3,
                    num_attention_heads=4,
                    num_key_value_heads=2,
                    head_dim=8,
                    vocab_size=512,
                    max_position_embeddings=160,
                    bos_token_id=1,
                    eos_token_id=1,
                    pad_token_id=None,
                    tie_word_embeddings=False,
                )
                made[name] = random_engine(config, tokenizer, name)
        return made[name]

    return make


@pytest.fixture
def keeping_sink() -> type[KeepingSink]:
    return KeepingSink


@pytest.fixture
def way() -> type[Way]:
    return Way


@pytest.fixture
def as_traced() -> Callable[[Engine, bool], AbstractContextManager[None]]:
    """Runs an engine under nnsight within the context, or as it is."""

    @contextmanager
    def run(engine: Engine, traced: bool) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            if traced:
                patch.setitem(engine.forwards.__dict__, "reason", "a test wants traces")
            yield

    return run


@pytest.fixture(scope="session")
def random_engine_of() -> Callable[[Any, PreTrainedTokenizerBase, str], Engine]:
    return random_engine


@pytest.fixture(scope="session")
def requests_for() -> Callable[..., list[GenerationRequest]]:
    def make(engine: Engine, prompts: Sequence[str], seed: int = 0) -> list[GenerationRequest]:
        return [
            GenerationRequest(
                key=f"s{i}", prompt_ids=tuple(engine.model.tokenizer(text)["input_ids"]), seed=seed + i
            )
            for i, text in enumerate(prompts)
        ]

    return make


def _first(value: Any) -> torch.Tensor:
    while isinstance(value, tuple | list):
        value = value[0]
    assert isinstance(value, torch.Tensor)
    return value


@pytest.fixture(scope="session")
def reference() -> Callable[..., dict[str, torch.Tensor]]:
    """Rows of every location by plain forward hooks, in one forward over all tokens that were run."""

    def compute(engine: Engine, generation: Generation, hooks: Sequence[str]) -> dict[str, torch.Tensor]:
        hf = engine.model.hf
        got: dict[str, torch.Tensor] = {}
        handles = []
        for hook in hooks:
            info = engine.structure.hooks.get(hook)
            path, _, side = (info.location if info else hook).rpartition(".")

            def keep(_: Any, args: Any, kwargs: Any, output: Any, hook: str = hook, side: str = side) -> None:
                value = output if side == "output" else (args or list(kwargs.values()))[0]
                got[hook] = _first(value)[0].detach().flatten(1).cpu().clone()

            handles.append(hf.get_submodule(path).register_forward_hook(keep, with_kwargs=True))
        ids = torch.tensor(
            [generation.prompt_ids + generation.generated_ids[:-1]], device=engine.model.device
        )
        try:
            with torch.inference_mode():
                hf(input_ids=ids, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        return got

    return compute
