"""POST /v1/estimate and the jobs that are refused because they cannot fit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from actograph.settings import Settings
from storage.queue import workers
from tests.integration.api.conftest import Problem, Service, Start, StoreWithDisk

FLOOR = 1 << 20
GIB = 1 << 30
#: one row of one hook of the demo model: 8 float32
ROW = 32


Disk = Callable[[int | None], Service]


@pytest.fixture
def service_with(start: Start, settings: Settings) -> Disk:
    def make(free: int | None) -> Service:
        service = start(settings.model_copy(update={"disk_floor_bytes": FLOOR}))
        services = service.services
        service.app.state.services = replace(services, store=StoreWithDisk(services.store, free))
        return service

    return make


def loaded(service: Service, available: int = GIB, **memory: int) -> None:
    worker_id = service.load_model(kv_bytes_per_token=1024)
    numbers = {"run_bytes": int(0.6 * available), "host_available_bytes": available, "slots": 16}
    with service.database.write() as session:
        workers.heartbeat(session, worker_id, numbers | {"host_buffer_bytes": 1 << 20} | memory)


def capture(**changes: Any) -> dict[str, Any]:
    body = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "x" * 40}, {"prompt": "x" * 80}]}
    return body | {"capture": {"points": ["resid_post"], "layers": "all"}} | changes


def test_an_estimate_names_every_number_and_queues_nothing(service_with: Disk) -> None:
    service = service_with(GIB)
    loaded(service)
    before = service.queue_state()
    answer = service.client.post("/v1/estimate", json=capture(sampling={"max_tokens": 11}, epochs=3))
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert service.queue_state() == before
    assert found["object"] == "estimate"
    assert found["samples"] == 6
    assert found["hooks"] == [f"resid_post.{i}" for i in range(4)]
    assert (found["prompt_tokens_mean"], found["prompt_tokens_longest"]) == (15, 20)
    assert found["bytes_per_token"] == 4 * ROW
    rows = 25 * 4 * ROW
    assert rows < found["bytes_per_sample"] < rows + 5000
    assert found["disk"] == {
        "needed": 6 * found["bytes_per_sample"],
        "available": GIB - FLOOR,
        "fits": True,
    }
    assert found["slots"] == 16
    assert found["device"]["available"] == 16 * 1024 * 1024, "16 slots of whole contexts"
    assert found["device"]["needed"] == 16 * 30 * 1024
    assert found["host"]["needed"] > found["device"]["needed"], "on a CPU both come from one memory"
    assert found["weights_bytes"] == 4000
    assert found["fits"] is True
    assert any("4 characters" in text for text in found["assumptions"])
    assert any("max_tokens = 11" in text for text in found["assumptions"])


def test_a_prompt_is_counted_with_what_stands_around_it(service_with: Disk) -> None:
    service = service_with(GIB)
    loaded(service)
    rows = [{"question": "q" * 40, "answer": "a" * 34 + "#### 1"} for _ in range(4)]
    body = {
        "kind": "evaluation",
        "model": "demo",
        "dataset": {"file_id": service.upload(*rows)},
        "num_fewshot": 2,
        "conditions": [{"name": "a"}, {"name": "b", "prefix": "p" * 20, "suffix": "s" * 20}],
    }
    found = service.client.post("/v1/estimate", json=body).json()
    assert found["samples"] == 8
    assert found["prompt_tokens_longest"] == (40 + 40 + 2 * 80) // 4
    assert found["prompt_tokens_mean"] == (40 + 20 + 2 * 80) // 4


def test_what_is_unknown_is_null_and_refuses_nothing(service_with: Disk) -> None:
    service = service_with(None)
    found = service.client.post("/v1/estimate", json=capture()).json()
    assert (found["bytes_per_token"], found["slots"], found["fits"]) == (None, None, None)
    assert found["disk"] == {"needed": None, "available": None, "fits": None}
    assert any("no worker has loaded demo yet" in text for text in found["assumptions"])
    assert service.client.post("/v1/jobs", json=capture()).status_code == 202
    service.load_model()
    assert service.client.post("/v1/estimate", json=capture()).json()["fits"] is None
    assert service.client.post("/v1/jobs", json=capture()).status_code == 202


def test_a_job_whose_sessions_cannot_fit_on_the_disk_is_refused(service_with: Disk, problem: Problem) -> None:
    service = service_with(FLOOR + 20_000)
    loaded(service)
    body = capture(inputs=[{"prompt": "x" * 80}] * 10, sampling={"max_tokens": 100})
    needed = service.client.post("/v1/estimate?prompt_tokens=10", json=body).json()["disk"]["needed"]
    assert needed > 10 * 109 * 4 * ROW
    before = service.queue_state()
    answer = service.client.post("/v1/jobs", json=body)
    problem(answer, 422, "insufficient_resources", "/capture", says=f"needed {needed:,} bytes")
    assert "available 20,000" in answer.text
    assert service.queue_state() == before
    smaller = body | {"inputs": [{"prompt": "x" * 80}], "capture": {"layers": [1]}}
    assert service.client.post("/v1/jobs", json=smaller).status_code == 202
    off = body | {"capture": None}
    assert service.client.post("/v1/jobs", json=off).status_code == 202


def test_a_job_of_which_one_sample_cannot_fit_is_refused(service_with: Disk, problem: Problem) -> None:
    service = service_with(GIB)
    loaded(service, available=100_000)
    answer = service.client.post("/v1/jobs", json=capture(sampling={"max_tokens": 200}))
    problem(answer, 422, "insufficient_resources", "/sampling/max_tokens", says="a sample alone")
    assert "available 29,696" in answer.text, "half of the memory, in whole tokens"
    assert service.client.post("/v1/jobs", json=capture(sampling={"max_tokens": 20})).status_code == 202
    estimate = service.client.post("/v1/estimate", json=capture(sampling={"max_tokens": 200})).json()
    assert (estimate["slots"], estimate["fits"]) == (1, False)


def test_a_gpu_needs_room_for_blocks_of_rows_too(service_with: Disk, problem: Problem) -> None:
    service = service_with(GIB)
    worker_id = service.load_model(kv_bytes_per_token=1024, device="cuda:0")
    numbers = {"host_available_bytes": GIB, "slots": 16, "host_buffer_bytes": 1 << 20}

    def estimate(run_bytes: int) -> Any:
        with service.database.write() as session:
            workers.heartbeat(session, worker_id, numbers | {"run_bytes": run_bytes})
        return service.client.post("/v1/estimate?prompt_tokens=10", json=capture(sampling={"max_tokens": 21}))

    block, keys = 64 * 4 * ROW, 30 * 1024
    found = estimate(GIB).json()
    needed = 16 * (keys + block) + block  # one block more, for rows that nobody keeps
    assert found["device"] == {"needed": needed, "available": GIB, "fits": True}
    assert (found["slots"], found["fits"]) == (16, True)
    # a quarter of so little memory holds no two blocks of rows
    found = estimate(7 * block).json()
    assert (found["device"]["fits"], found["fits"]) == (False, False)
    answer = service.client.post("/v1/jobs", json=capture(sampling={"max_tokens": 21}))
    problem(answer, 422, "insufficient_resources", "/sampling/max_tokens", says="memory of the device")
