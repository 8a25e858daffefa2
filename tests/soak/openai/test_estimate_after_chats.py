"""The estimate of an evaluation, against what was stored, on a service that answered chats before."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from storage.queue import model_tokenizers
from worker.text.chat_template import exported

if TYPE_CHECKING:
    from tests.integration.openai.conftest import Service

pytestmark = pytest.mark.integration


def test_chats_do_not_sway_the_estimate_of_an_evaluation(
    service: "Service", client: openai.OpenAI, shared: Path
) -> None:
    definition = exported(service.engine.model.tokenizer)
    assert definition is not None
    with service.database.write() as session:
        model_tokenizers.keep(session, "tiny-qwen3", definition)
    for text in ("hi", "1 1 1 1 1 1 1 1 1 1", "?!?!?!?!"):
        client.chat.completions.create(
            model="tiny-qwen3", messages=[{"role": "user", "content": text}], max_tokens=2
        )
    with httpx.Client(base_url=service.url, timeout=60) as http:
        problems = (shared / "data/gsm8k/test.jsonl").read_bytes()
        upload = http.post("/v1/files", files={"file": ("gsm8k.jsonl", problems)})
        body: dict[str, Any] = {
            "kind": "evaluation",
            "model": "tiny-qwen3",
            "task": "gsm8k",
            "dataset": {"file_id": upload.json()["id"]},
            "limit": 120,
            "num_fewshot": 1,
            "sampling": {"max_tokens": 8},
            "capture": {"points": ["resid_post"], "layers": "all"},
        }
        told = http.post("/v1/estimate", json=body)
        assert told.status_code == 200, told.text
        job_id = http.post("/v1/jobs", json=body).json()["id"]
        deadline = time.monotonic() + 300
        while service.job(job_id).status != "completed":
            assert time.monotonic() < deadline
            time.sleep(0.05)
        usage = http.get("/v1/jobs/" + job_id).json()
        stored = sum(
            one["bytes"]
            for page in _pages(http, f"/v1/activations/sessions?job_id={job_id}&limit=100")
            for one in page["data"]
        )
    needed = told.json()["disk"]["needed"]
    assert usage["progress"]["completed"] == 120
    assert needed == pytest.approx(stored, rel=0.05), json.dumps(told.json(), indent=1)
    assert told.json()["prompt_tokens_source"] == "measured_prompts"


def _pages(http: httpx.Client, path: str) -> list[dict[str, Any]]:
    pages = [http.get(path).json()]
    while pages[-1]["has_more"]:
        pages.append(http.get(f"{path}&after={pages[-1]['last_id']}").json())
    return pages
