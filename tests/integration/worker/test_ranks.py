"""Tensor parallelism on CPUs: two ranks give what one process gives, and end together."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from actograph.contract.errors import DeviceLost, InvalidRequest
from actograph.contract.saes import SaeConfig
from tests.support.architectures import ARCHITECTURES
from tests.support.checkpoints import save_random
from tests.support.local_engine import ListedRun, LocalEngine
from tests.support.saes import write_sae
from tests.support.shared_model import (
    OPTIONS,
    Answers,
    asked_of,
    assert_alike,
    is_alive,
    others_of,
    running,
    started,
)
from tests.support.waiting import wait_until
from worker.engine.client import EngineProcess
from worker.engine.engine import Engine
from worker.engine.messages import Capture, Edit, Encoding, Generation, Request
from worker.engine.model.load import load_model

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("model")
    save_random(ARCHITECTURES["qwen3"].config(), made)
    return made


@pytest.fixture(scope="module")
def process(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    made = started(folder, tmp_path_factory.mktemp("home"))
    yield made
    made.close()


def test_two_ranks_give_the_tokens_and_rows_of_one_process(process: EngineProcess, folder: Path) -> None:
    alone = LocalEngine(Engine(load_model(str(folder), dtype="float32", device="cpu")), slots=5)
    requests = asked_of(process.structure)
    assert_alike(Answers(process, requests), Answers(alone, requests))


def test_rank_0_encodes_by_saes(process: EngineProcess, folder: Path, tmp_path: Path) -> None:
    alone = LocalEngine(Engine(load_model(str(folder), dtype="float32", device="cpu")), slots=5)
    sizes = {"d_in": process.structure.hidden_size, "d_sae": 40}
    write_sae(tmp_path, **sizes)
    encoding = Encoding(
        name="sae:s",
        hook="resid_post.1",
        top=5,
        config=SaeConfig(architecture="standard", **sizes),
        sha256="s",
        path=str(tmp_path / "sae_weights.safetensors"),
    )
    capture = Capture(hooks=("resid_post.1",), encodings=(encoding,))
    requests = [replace(one, capture=capture) for one in asked_of(process.structure)[:3]]
    got = Answers(process, requests)
    assert_alike(got, Answers(alone, requests))
    assert {hook for _, hook in got.rows()} == {"resid_post.1", "sae:s.indices", "sae:s.values"}


def test_the_structure_has_whole_tensors_alone_and_says_why_others_are_missing(
    process: EngineProcess, folder: Path
) -> None:
    alone = Engine(load_model(str(folder), dtype="float32", device="cpu")).structure
    shared = process.structure
    assert (shared.tensor_parallel, len(others_of(process))) == (2, 1)
    assert shared.identity is not None and shared.identity.tensor_parallel == 2
    of_heads = {f"{point}.{layer}" for point in "qkvz" for layer in range(alone.num_layers)}
    assert shared.hooks == {name: info for name, info in alone.hooks.items() if name not in of_heads}
    for point in "qkvz":
        assert "a part of the heads" in shared.unavailable[point]
    assert alone.attention and not shared.attention
    assert shared.num_parameters == alone.num_parameters
    missing = set(alone.module_locations) - set(shared.module_locations)
    assert "model.layers.0.mlp.down_proj.input" in missing
    for location in missing:
        assert "each of 2 ranks has a part" in shared.unavailable[location]
    for location, info in shared.module_tensors.items():
        assert info == alone.module_tensors[location]
    # and so each rank has half of the keys and values
    assert shared.kv_bytes_per_token == 3 * 2 * 8 * 4
    with pytest.raises(InvalidRequest, match="cannot be traced"):
        shared.engine_for("traced")


def test_a_request_at_fault_fails_alone(process: EngineProcess) -> None:
    good, bad = asked_of(process.structure)[:2]
    wrong = Request(
        key="wrong",
        prompt_ids=bad.prompt_ids,
        seed=0,
        max_tokens=2,
        edits=(Edit(hook="nothing.7", op="zero"),),
    )
    made = ListedRun([good, wrong]).through(process, OPTIONS)
    assert made[0].error is None and "nothing.7" in str(made[1].error)


class Told:
    """Notes what other ranks would be told."""

    def __init__(self) -> None:
        self.kinds: list[str] = []

    def __getattr__(self, kind: str) -> Callable[..., None]:
        return lambda *_: self.kinds.append(kind)


def test_a_run_that_fails_ends_for_the_other_ranks_too(folder: Path) -> None:
    """Else the hooks of its last pass would stay on their model."""
    engine = Engine(load_model(str(folder), dtype="float32", device="cpu"))
    engine.others = told = Told()

    class Failing(ListedRun):
        def done(self, generation: Generation) -> None:
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        Failing(asked_of(engine.structure)[:1]).through(LocalEngine(engine), OPTIONS)
    assert (told.kinds[0], told.kinds[-1]) == ("opened", "closed")
    assert "passes" in told.kinds[1:-1]


def test_the_end_of_a_rank_is_the_end_of_all(process: EngineProcess) -> None:
    """The last test of this process: what ran is lost, what had ended is not."""
    ranks = [psutil.Process(process.pid), *others_of(process)]
    with pytest.raises(DeviceLost):
        running(process, ranks[1].kill)
    wait_until(lambda: not any(map(is_alive, ranks)))
