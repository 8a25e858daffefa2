"""What the worker sets for a model on a CPU or a GPU, and that a user's own choice stands."""

import pytest
import torch

from worker.__main__ import tune_for_cpu, tune_for_gpu
from worker.engine.model.devices import make_current


def test_threads_spin_little_and_activations_take_large_pages() -> None:
    environment: dict[str, str] = {}
    tune_for_cpu(environment)
    assert environment == {"GOMP_SPINCOUNT": "5000", "THP_MEM_ALLOC_ENABLE": "1"}


def test_what_the_user_said_stands() -> None:
    environment = {"OMP_WAIT_POLICY": "active", "THP_MEM_ALLOC_ENABLE": "0"}
    tune_for_cpu(environment)
    assert environment == {"OMP_WAIT_POLICY": "active", "THP_MEM_ALLOC_ENABLE": "0"}
    environment = {"GOMP_SPINCOUNT": "7", "THP_MEM_ALLOC_ENABLE": "1"}
    tune_for_cpu(environment)
    assert environment["GOMP_SPINCOUNT"] == "7"


def test_memory_of_a_gpu_lies_in_segments_that_grow() -> None:
    environment: dict[str, str] = {}
    tune_for_gpu(environment)
    assert environment == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}


@pytest.mark.parametrize("name", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
def test_an_allocator_that_the_user_chose_stands(name: str) -> None:
    environment = {name: "backend:native"}
    tune_for_gpu(environment)
    assert environment == {name: "backend:native"}


def test_a_gpu_with_a_number_is_made_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "set_device", made.append)
    for name in ("cpu", "cuda", "cuda:1"):
        make_current(torch.device(name))
    assert made == [torch.device("cuda:1")]
