"""Tensor parallelism on CPUs: architectures on two ranks, what ends a rank, and models that are refused."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import GPT2Config, LlamaConfig

from actograph.contract.errors import ActographError, DeviceLost, ModelRefused, WorkerStalled
from actograph.contract.head_columns import HEAD_POINTS
from actograph.contract.hooks import point_of
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.models import parse_served
from actograph.settings import Settings
from tests.support.architectures import ARCHITECTURES
from tests.support.checkpoints import save_random
from tests.support.local_engine import LocalEngine
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
from worker.engine.model import sharded
from worker.engine.model.load import load_model

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

KINDS = ("llama", "qwen3", "gemma2", "qwen3_moe", "mixtral", "olmo2", "phi3")


def test_architectures_in_turn_on_two_ranks(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """One process loads them one after the other, so that ranks come and go with their models."""
    process = EngineProcess(Settings(home=tmp_path, threads=2, slots=5, tensor_parallel=2))
    try:
        for kind in KINDS:
            with subtests.test(kind):
                folder = tmp_path / kind
                folder.mkdir()
                save_random(ARCHITECTURES[kind].config(), folder)
                process.load(parse_served(f"{kind}={folder}"), ModelLoadOptions(dtype="float32"))
                alone = LocalEngine(Engine(load_model(str(folder), dtype="float32", device="cpu")), slots=5)
                ours, whole = set(process.structure.hooks), set(alone.structure.hooks)
                # heads are there where the plan gathers them, and are compared below
                assert ours <= whole and {point_of(hook) for hook in whole - ours} <= set(HEAD_POINTS)
                requests = asked_of(process.structure)
                assert_alike(Answers(process, requests), Answers(alone, requests))
    finally:
        process.close()


ENDS: dict[str, tuple[type[ActographError], Callable[[EngineProcess], None]]] = {
    "another rank is killed": (DeviceLost, lambda process: others_of(process)[0].kill()),
    "rank 0 is killed": (DeviceLost, lambda process: os.kill(process.pid, signal.SIGKILL)),
    "another rank stands still": (
        WorkerStalled,
        lambda process: (others_of(process)[0].suspend(), process.kill(WorkerStalled("stuck")))[1],
    ),
}


def test_two_ranks_repeat_bit_by_bit(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_random(ARCHITECTURES["qwen3"].config(), folder)
    process = started(folder, tmp_path, repeatable=True)
    try:
        requests = asked_of(process.structure)
        options = replace(OPTIONS, repeatable=True)
        first = Answers(process, requests, options)
        again = Answers(process, requests[::-1], replace(options, slots=3))
        assert [one.generated_ids for one in again.made[::-1]] == [one.generated_ids for one in first.made]
        rows, due = again.rows(), first.rows()
        assert rows.keys() == due.keys() and rows
        assert all(torch.equal(rows[key], due[key]) for key in due)
    finally:
        process.close()


@pytest.mark.parametrize("end", ENDS)
def test_ranks_end_together_whichever_fails(tmp_path: Path, end: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_random(ARCHITECTURES["qwen3"].config(), folder)
    process = started(folder, tmp_path)
    ranks = [psutil.Process(process.pid), *others_of(process)]
    error, act = ENDS[end]
    with pytest.raises(error):
        running(process, lambda: act(process))
    wait_until(lambda: not any(map(is_alive, ranks)))
    process.close()


COMMON: dict[str, Any] = {"vocab_size": 512, "hidden_size": 36, "num_hidden_layers": 2}
REFUSED = {
    "its num_key_value_heads of 3 cannot be divided": LlamaConfig(
        **COMMON, num_attention_heads=6, num_key_value_heads=3
    ),
    "no plan by which ranks share a model of the kind gpt2": GPT2Config(),
}


def test_a_model_that_ranks_cannot_share_is_refused_with_the_reason(subtests: pytest.Subtests) -> None:
    for reason, config in REFUSED.items():
        with subtests.test(reason), pytest.raises(ModelRefused, match=reason):
            sharded.check("m", config, 2, torch.device("cpu"))
    with subtests.test("a device"), pytest.raises(ModelRefused, match="neither a device nor a device_map"):
        load_model("m", device="cpu", ranks=2)


def test_a_refusal_comes_from_all_ranks_and_the_process_goes_on(tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.mkdir()
    save_random(LlamaConfig(**COMMON, num_attention_heads=6, num_key_value_heads=3), odd)
    even = tmp_path / "even"
    even.mkdir()
    save_random(ARCHITECTURES["qwen3"].config(), even)
    process = EngineProcess(Settings(home=tmp_path, threads=2, tensor_parallel=2))
    try:
        with pytest.raises(ModelRefused, match="cannot be divided among 2 ranks"):
            process.load(parse_served(f"odd={odd}"), ModelLoadOptions())
        process.load(parse_served(f"m={even}"), ModelLoadOptions())
        assert process.structure.model == "m"
    finally:
        process.close()
