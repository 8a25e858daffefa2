"""Attacks with datasets, uploads and stored files, and what other clients notice of them."""

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pyarrow
import pytest
from pyarrow import parquet

from actograph.demo import MODEL_DIR
from bench.attack import AttackedService

pytestmark = [pytest.mark.e2e, pytest.mark.integration]

ROOT_KEY = "the-admins-own-key"


@pytest.fixture(scope="module")
def attacked(module_up: Callable[..., Any]) -> Iterator[AttackedService]:
    """One service for all attacks: what an attack leaves behind must not hurt the next."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACTOGRAPH_API_KEYS", ROOT_KEY)
        patch.setenv("ACTOGRAPH_DISK_FLOOR_BYTES", "0")
        up = module_up(model=f"demo={MODEL_DIR}")
    up.await_ready()
    yield AttackedService(
        up.url,
        api_pid=up.child("api").pid,
        home=up.home,
        admin_key=ROOT_KEY,
        model="demo",
    )
    assert up.stop() == 0


def upload(client: httpx.Client, content: bytes, name: str = "rows.jsonl") -> str:
    answer = client.post("/v1/files", files={"file": (name, content)})
    return str(answer.raise_for_status().json()["id"])


def evaluation(file_id: str, **changes: Any) -> dict[str, Any]:
    return {"kind": "evaluation", "model": "demo", "dataset": {"file_id": file_id}} | changes


def in_turns(client: httpx.Client, spec: dict[str, Any], times: int) -> list[int]:
    """The statuses of submits and estimates that are sent at once."""

    def send(number: int) -> int:
        route = "/v1/jobs" if number % 2 else "/v1/estimate"
        return client.post(route, json=spec).status_code

    with ThreadPoolExecutor(times) as pool:
        return list(pool.map(send, range(times)))


def one_page() -> bytes:
    column = pyarrow.array(["\0" * (400 << 20)])
    file = io.BytesIO()
    parquet.write_table(
        pyarrow.table({"question": column, "answer": ["#### 1"]}), file, compression="zstd",
        use_dictionary=False, write_statistics=False,
    )  # fmt: skip
    return file.getvalue()


def test_small_parquet_files_that_stand_for_gigabytes(attacked: AttackedService) -> None:
    data = one_page()
    assert len(data) < 100_000
    with attacked.client("mallory") as mallory:
        file_id = upload(mallory, data, "rows.parquet")
        with attacked.under_attack() as attack:
            statuses = in_turns(mallory, evaluation(file_id), 4)
        assert set(statuses) <= {422, 503}
        assert 422 in statuses
        clear(mallory)
    attack.require_withstood()


def clear(client: httpx.Client) -> None:
    """Cancel and delete what the attacker has."""
    for job in client.get("/v1/jobs", params={"limit": 100}).json()["data"]:
        client.post(f"/v1/jobs/{job['id']}/cancel")
        client.delete(f"/v1/jobs/{job['id']}")
    for file in client.get("/v1/files", params={"limit": 100}).json()["data"]:
        client.delete(f"/v1/files/{file['id']}")
