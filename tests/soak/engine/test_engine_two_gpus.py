"""A model on two GPUs, and on a GPU and main memory, against the same model on one."""

from pathlib import Path

import pytest
import torch

from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import KeepingSink, generate
from worker.engine.engine import Engine
from worker.engine.messages import Edit, Request
from worker.engine.model.load import load_model

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

#: the embedding and the head share their weights in this model, so they stay together
MAPS: dict[str, dict[str, int | str]] = {
    "two GPUs": {
        "model.embed_tokens": 0,
        "model.rotary_emb": 0,
        "model.layers.0": 0,
        "model.layers.1": 1,
        "model.norm": 1,
        "lm_head": 0,
    },
    "a GPU and main memory": {
        "model.embed_tokens": 1,
        "model.rotary_emb": 1,
        "model.layers.0": "cpu",
        "model.layers.1": 1,
        "model.norm": 1,
        "lm_head": 1,
    },
}


@pytest.mark.parametrize("where", list(MAPS))
def test_tokens_and_rows_are_those_of_one_gpu(where: str, shared: Path) -> None:
    source = str(shared / "models" / "tiny-qwen3")
    single = Engine(load_model(source, dtype="float32", device="cuda:0"))
    spread = Engine(load_model(source, dtype="float32", device_map=MAPS[where]))
    assert spread.structure.devices == (["cuda:0", "cuda:1"] if where == "two GPUs" else ["cuda:1"] * 2)
    hooks = list(single.structure.hooks)
    vector = torch.linspace(-1.0, 1.0, single.structure.hidden_size).numpy()
    edits = tuple(Edit(hook=f"resid_post.{i}", op="add", vector=vector) for i in range(2))
    requests = [
        Request(key=str(i), prompt_ids=tuple(range(3 + i, 20)), seed=i, edits=edits) for i in range(3)
    ]
    made, sinks = [], []
    for engine in (single, spread):
        sinks.append(KeepingSink())
        made.append(
            generate(
                engine,
                requests,
                sampling=SamplingSpec(max_tokens=12, temperature=0.7),
                hooks=hooks,
                sink=sinks[-1],
            )
        )
    for i in range(len(requests)):
        assert made[0][i].error is None and made[1][i].error is None
        assert made[0][i].generated_ids == made[1][i].generated_ids
        for hook in hooks:
            assert torch.allclose(sinks[0].rows(i, hook), sinks[1].rows(i, hook), rtol=1e-4, atol=1e-4), hook


def test_a_strategy_uses_both(shared: Path) -> None:
    source, room = str(shared / "models" / "tiny-qwen3"), 1 << 20
    model = load_model(source, dtype="float32", device_map="balanced", max_memory={0: room, 1: room})
    assert {device.type for device in model.devices} == {"cuda"}
