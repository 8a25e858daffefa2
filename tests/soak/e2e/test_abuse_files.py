"""Attacks with datasets, uploads and stored files, and what other clients notice of them."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.attack import AttackedService

pytestmark = [pytest.mark.e2e, pytest.mark.integration]


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


def test_flipped_bytes_are_never_served(attacked: AttackedService) -> None:
    with attacked.client("mallory") as mallory:
        chat = {
            "model": "demo",
            "messages": [{"role": "user", "content": "What is 2 + 2?"}],
            "capture": {"points": ["resid_post"], "layers": "all"},
            "max_tokens": 8,
        }
        session_id = mallory.post("/v1/chat/completions", json=chat).raise_for_status().json()["session_id"]
        file_id = upload(mallory, b'{"question": "q", "answer": "#### 1"}\n' * 1000)
        stored = next(attacked.home.rglob(f"{session_id}/activations.safetensors"))
        for path, at in ((stored, -7), (next(attacked.home.rglob(file_id)), 100)):
            data = bytearray(path.read_bytes())
            data[at] ^= 1
            path.write_bytes(data)
        session = f"/v1/activations/sessions/{session_id}"
        hook = list(mallory.get(session).json()["hooks"])[-1]
        reads = [
            f"{session}/files/{stored.name}",
            f"{session}/tensors/{hook}?rows=0:1",
            f"/v1/files/{file_id}/content",
        ]
        with attacked.under_attack() as attack, ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(mallory.get, reads * 20))
            assert in_turns(mallory, evaluation(file_id), 2) == [500, 500]
        assert {(answer.status_code, answer.json()["error"]["code"]) for answer in answers} == {
            (500, "store_damaged")
        }
        clear(mallory)
    attack.require_withstood()


def clear(client: httpx.Client) -> None:
    """Cancel and delete what the attacker has."""
    for job in client.get("/v1/jobs", params={"limit": 100}).json()["data"]:
        client.post(f"/v1/jobs/{job['id']}/cancel")
        client.delete(f"/v1/jobs/{job['id']}")
    for file in client.get("/v1/files", params={"limit": 100}).json()["data"]:
        client.delete(f"/v1/files/{file['id']}")
