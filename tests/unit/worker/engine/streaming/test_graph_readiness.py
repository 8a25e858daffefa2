"""A decode step with its numbers on the device: equal to the plain one, and fit for a CUDA graph."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, Qwen3Config
from transformers.cache_utils import Cache

from tests.support.graph_readiness import GraphReadiness, NotCapturable
from worker.engine.streaming.attention import decode_attention
from worker.engine.streaming.static_attention import static_decode_attention, write_token

SLOTS, KEY_HEADS, CAPACITY, WIDTH, LONGEST = 7, 2, 48, 16, 40
EXTRAS: list[dict[str, Any]] = [
    {},
    {"window": 6},
    {"softcap": 2.5},
    {"sinks": torch.linspace(-2, 2, 6)},
    {"sinks": torch.linspace(-2, 2, 6), "softcap": 2.5, "window": 6},
]


def cache(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    keys, values = torch.randn(2, SLOTS, KEY_HEADS, CAPACITY, WIDTH, generator=generator).to(dtype)
    return keys, values


def query_of(rows: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(rows, 6, WIDTH, generator=torch.Generator().manual_seed(4)).to(dtype)


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 2e-6), (torch.bfloat16, 2e-2)]
)
def test_it_equals_the_plain_one(extras: dict[str, Any], dtype: torch.dtype, bound: float) -> None:
    slots, lengths = [4, 0, 6, 2], [1, 40, 17, 6]
    keys, values = cache(dtype)
    query = query_of(4, dtype)
    options = {**extras, "scale": 0.25}
    plain = decode_attention(query, keys, values, slots, lengths, **options)
    static = static_decode_attention(
        query, keys, values, torch.tensor(slots), torch.tensor(lengths), longest=LONGEST, **options
    )
    torch.testing.assert_close(static, plain, atol=bound, rtol=bound)


def test_padding_rows_change_nothing() -> None:
    keys, values = cache()
    query = query_of(4)
    slots, lengths = torch.tensor([4, 0, 6, 6]), torch.tensor([9, 40, 1, 1])
    both = static_decode_attention(query, keys, values, slots, lengths, longest=LONGEST, scale=0.25)
    assert both.isfinite().all()
    own = static_decode_attention(
        query[:2], keys, values, slots[:2], lengths[:2], longest=LONGEST, scale=0.25
    )
    torch.testing.assert_close(both[:2], own)


class Step:
    """Buffers of one bucket and the operations of a step on them."""

    def __init__(self, extras: dict[str, Any]) -> None:
        self.keys, self.values = cache()
        self.query = query_of(4)
        self.new = query_of(4)[:, :KEY_HEADS].contiguous()
        self.slots = torch.zeros(4, dtype=torch.int64)
        self.lengths = torch.ones(4, dtype=torch.int64)
        self.extras = extras

    @property
    def static(self) -> list[Tensor]:
        return [self.keys, self.values, self.query, self.new, self.slots, self.lengths]

    def run(self) -> Tensor:
        write_token(self.keys, self.new, self.slots, self.lengths)
        write_token(self.values, self.new, self.slots, self.lengths)
        held = self.keys, self.values, self.slots, self.lengths
        out = static_decode_attention(self.query, *held, longest=LONGEST, scale=0.25, **self.extras)
        self.lengths.add_(1)
        return out


@pytest.mark.parametrize("extras", EXTRAS)
def test_steps_of_a_bucket_are_the_same_operations_on_the_same_storages(extras: dict[str, Any]) -> None:
    step = Step(extras)
    recorded = []
    for slots, lengths in (([0, 1, 2, 3], [1, 7, 12, 39]), ([5, 3, 6, 6], [30, 2, 1, 1])):
        step.slots.copy_(torch.tensor(slots))
        step.lengths.copy_(torch.tensor(lengths))
        with GraphReadiness(step.static) as mode:
            step.run()
        recorded.append(mode)
    first, second = recorded
    assert first.calls
    assert first.calls == second.calls
    assert first.new_bytes == second.new_bytes
    assert {address for call in first.calls for address in call.storages} == {
        tensor.untyped_storage().data_ptr() for tensor in step.static
    }


def test_the_plain_one_differs_from_step_to_step() -> None:
    keys, values = cache()
    recorded = []
    for lengths in ([3, 4], [3, 9]):
        with GraphReadiness() as mode:
            decode_attention(query_of(2), keys, values, [0, 1], lengths, scale=0.25)
        recorded.append(mode.calls)
    assert recorded[0] != recorded[1]


@pytest.mark.parametrize(
    "work",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.sum() > 0),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.__setitem__(x > 0, torch.zeros_like(x[0])),
        lambda x: x.unique(),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: torch.equal(x, x),
        lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
        lambda x: x.to("meta"),
        lambda x: x[torch.tensor(1)],
    ],
)
def test_the_recorder_refuses_what_a_graph_cannot_hold(work: Callable[[Tensor], object]) -> None:
    given = torch.ones(3)
    with pytest.raises(NotCapturable), GraphReadiness():
        work(given)


def test_the_recorder_lets_static_work_pass() -> None:
    given, index = torch.ones(3), torch.tensor([0, 2])
    with GraphReadiness([given]) as mode:
        (given[index] * 2).where(given[index] > 0, 0.0).argmax()
    assert next(call.name for call in mode.calls) == "aten.index.Tensor"


class StaticCache(Cache):
    """Writes the newest token of each row. Without a cache transformers reads the positions on the host."""

    def __init__(self, slots: Tensor, lengths: Tensor) -> None:
        self.layers: list[Any] = []
        self.keys, self.values = ([cache()[i] for _ in range(2)] for i in range(2))
        self._places = slots, lengths

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        write_token(self.keys[layer_idx], key_states[:, :, 0], *self._places)
        write_token(self.values[layer_idx], value_states[:, :, 0], *self._places)
        return key_states, value_states

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return query_length, 0


class ModelStep:
    """A whole decode step of a model: ids in, keys and values written, the next ids chosen in place."""

    def __init__(self, rows: int) -> None:
        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=60,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=WIDTH,
            bos_token_id=None,
            eos_token_id=None,
        )
        auto: Any = AutoModelForCausalLM
        self.model = auto.from_config(config).eval()
        self.model.config._attn_implementation = "static_for_tests"
        self.ids = torch.zeros(rows, 1, dtype=torch.int64)
        self.slots = torch.arange(rows)
        self.lengths = torch.ones(rows, dtype=torch.int64)
        self.cache = StaticCache(self.slots, self.lengths)

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, *_: None, scaling: float, **__: Any
    ) -> tuple[Tensor, None]:
        layer = module.layer_idx
        held = self.cache.keys[layer], self.cache.values[layer], self.slots, self.lengths
        out = static_decode_attention(query[:, :, 0], *held, longest=LONGEST, scale=scaling)
        return out[:, None], None

    @torch.inference_mode()
    def run(self) -> None:
        positions = self.lengths[:, None] - 1
        logits = self.model(input_ids=self.ids, position_ids=positions, past_key_values=self.cache).logits
        self.ids.copy_(logits[:, -1].argmax(-1, keepdim=True))
        self.lengths.add_(1)

    def generate(self, ids: list[int], steps: int) -> Tensor:
        """Next ids of each step, [steps, rows]; the rows begin with one token each."""
        self.ids.copy_(torch.tensor(ids)[:, None])
        self.lengths.fill_(1)
        found = []
        for _ in range(steps):
            self.run()
            found.append(self.ids[:, 0].clone())
        return torch.stack(found)


@pytest.fixture
def model_step() -> ModelStep:
    step = ModelStep(rows=3)
    AttentionInterface.register("static_for_tests", step.attend)
    AttentionMaskInterface.register("static_for_tests", lambda *_, **__: None)
    return step


def test_a_whole_step_of_a_model_can_be_captured(model_step: ModelStep) -> None:
    model_step.generate([5, 6, 7], 1)
    static = [
        model_step.ids,
        model_step.slots,
        model_step.lengths,
        *model_step.cache.keys,
        *model_step.cache.values,
    ]
    recorded = []
    for _ in range(3):
        with GraphReadiness(static) as mode:
            model_step.run()
        recorded.append(mode)
    assert recorded[0].calls == recorded[1].calls == recorded[2].calls
    assert recorded[0].new_bytes == recorded[1].new_bytes == recorded[2].new_bytes
    assert sum("index_put" in call.name for call in recorded[0].calls) == 4  # keys and values of two layers


def test_a_step_of_the_whole_model_chooses_what_plain_generation_does(model_step: ModelStep) -> None:
    found = model_step.generate([5, 6, 7], 6)
    model_step.model.config._attn_implementation = "sdpa"
    ids = torch.tensor([[5], [6], [7]])
    with torch.inference_mode():
        for step in range(6):
            following = model_step.model(input_ids=ids).logits[:, -1].argmax(-1)
            assert torch.equal(following, found[step])
            ids = torch.cat([ids, following[:, None]], 1)
