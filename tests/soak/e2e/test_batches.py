"""Batches on Postgres and S3 with two API processes; they and the worker are killed on the way."""

import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import openai
import pytest

from actograph.client import Client
from actograph.contract.operations import WorkerStatus
from storage.artifacts.s3 import S3Store
from tests.support.servers.s3 import S3Server

pytestmark = [pytest.mark.e2e, pytest.mark.integration]

CHAT: Any = "/v1/chat/completions"
CAPTURES: list[dict[str, Any] | None] = [
    {"points": ["resid_post"], "layers": "all"},
    None,
    {"points": ["mlp_out"], "layers": [0], "positions": "generated"},
]
LINES, MANY = 36, 2000

Wait = Callable[..., None]


@pytest.fixture
def service(
    up: Callable[..., Any],
    postgres_and_s3: Callable[[str], None],
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    postgres_and_s3(s3_server.url)
    for name, value in {
        "BATCH_SIZE": "4",
        "API_PROCESSES": "2",
        "LEASE_SECONDS": "6",
        "RECONCILE_SECONDS": "1",
    }.items():
        monkeypatch.setenv(f"ACTOGRAPH_{name}", value)
    started = up()
    started.await_ready()
    return started


def line(number: int) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": f"Tom has {number} apples and buys 3. How many?"}],
        "max_tokens": 96,
        "temperature": 0.8,
        "seed": number,
    }
    if (capture := CAPTURES[number % 3]) is not None:
        body["capture"] = capture
    return {"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body}


def begin(client: openai.OpenAI, count: int) -> str:
    text = "\n".join(json.dumps(line(number)) for number in range(count))
    file = client.files.create(file=("in.jsonl", text.encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h").id


def kill_worker_in(plain: Client, job_id: str) -> None:
    """Kill the worker while it runs samples of this job."""
    while True:
        live = [one for one in plain.workers.list() if one.status is not WorkerStatus.OFFLINE]
        (worker,) = [one for one in live if one.model != "=analysis"]
        os.kill(worker.pid, signal.SIGSTOP)
        if any(sample.status == "leased" for sample in plain.jobs.get(job_id).samples()):
            os.kill(worker.pid, signal.SIGKILL)
            return
        # between two units it holds none
        os.kill(worker.pid, signal.SIGCONT)
        assert plain.jobs.get(job_id).finished_at is None
        time.sleep(0.02)


def answers(client: openai.OpenAI, batch: Any) -> dict[str, Any]:
    found = [json.loads(text) for text in client.files.content(batch.output_file_id).text.splitlines()]
    assert [one["custom_id"] for one in found] == [f"line-{number}" for number in range(LINES)]
    return {one["custom_id"]: one["response"]["body"] for one in found}


def kill_api(service: Any, wait: Wait) -> None:
    """Every process of the API at once; the supervisor starts it again."""
    api = service.child("api")
    family = [*api.children(recursive=True), api]
    said = service.said().count("starting it again")
    for process in family:
        process.kill()
    wait(lambda: service.said().count("starting it again") > said)


def test_nothing_is_lost_or_doubled_whoever_dies(service: Any, wait: Wait) -> None:
    client = openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=12)
    with Client(service.url, "", retries=12) as plain:

        def status(batch_id: str) -> str:
            return str(plain.batches.get(batch_id).status)

        undisturbed = begin(client, LINES)
        wait(lambda: status(undisturbed) == "completed")

        # a worker and the API die in the middle
        disturbed = begin(client, LINES)
        wait(lambda: plain.batches.get(disturbed).request_counts.completed > 4)
        job_id = plain.batches.get(disturbed).job_id
        assert job_id is not None
        kill_worker_in(plain, job_id)
        kill_api(service, wait)
        wait(lambda: status(disturbed) == "completed")
        one, other = (client.batches.retrieve(batch_id) for batch_id in (undisturbed, disturbed))
        first, second = answers(client, one), answers(client, other)
        for name, answer in first.items():
            said, again = (found["choices"][0]["message"]["content"] for found in (answer, second[name]))
            assert said == again, name
            assert answer.get("activations_meta") == second[name].get("activations_meta"), name
        assert (one.usage, one.error_file_id) == (other.usage, other.error_file_id)
        assert {sample.losses for sample in plain.jobs.get(job_id).samples()} == {0, 1}
        kept = list(plain.sessions.list(job_id=job_id))
        assert len(kept) == LINES * 2 // 3
        assert {one.id for one in kept} == {
            body["session_id"] for body in second.values() if "session_id" in body
        }

        # the API dies while it makes a batch of a long file
        long = begin(client, MANY)
        kill_api(service, wait)
        wait(lambda: status(long) == "in_progress")
        assert plain.batches.get(long).request_counts.total == MANY
        made = [job for job in plain.jobs.list(kind="batch") if job.spec["batch_id"] == long]
        assert [job.progress.total for job in made] == [MANY]
        plain.batches.cancel(long)
        wait(lambda: status(long) == "cancelled")
        batch = client.batches.retrieve(long)
        ended = batch.request_counts
        assert ended is not None
        texts = [
            client.files.content(file_id).text if file_id else ""
            for file_id in (batch.output_file_id, batch.error_file_id)
        ]
        assert [text.count("\n") for text in texts] == [ended.completed, MANY - ended.completed]
        bucket, _, prefix = os.environ["ACTOGRAPH_ARTIFACT_URL"].removeprefix("s3://").partition("/")
        stored = {found.prefix for found in S3Store(bucket, prefix).list_prefixes("files")}
        listed = {f"files/{file.id}" for file in client.files.list()}
        assert stored == listed
    assert service.stop() == 0
