"""Webhooks against a real receiver: what is sent and signed, repeats, refused places, restarts."""

import gzip
import json
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import openai
import pytest
import sqlalchemy as sa

from actograph.settings import Settings
from storage.jobs import job_deletion
from storage.tables.models import WebhookRow
from tests.support.servers.receiver import Receiver

if TYPE_CHECKING:
    from tests.integration.api.conftest import Problem, Service, Start

pytestmark = pytest.mark.integration

SECRET = "whsec_" + "c2VjcmV0IG9mIHRoZSB0ZXN0cyBhbG9uZSwgMzIgYnl0"


@pytest.fixture
def told(settings: Settings, receiver: Receiver) -> Settings:
    """Settings of a service that may tell the receiver."""
    changes = {"webhook_hosts": (receiver.host,), "webhook_secret": SECRET, "webhook_retry_seconds": 0.01}
    return settings.model_copy(update=changes)


def entries(service: "Service", job_id: str) -> list[tuple[str, dict[str, Any]]]:
    """The webhooks' part of a job's log."""
    from storage.index import events

    with service.database.read() as session:
        found = events.after(session, job_id, 0)
    return [(event.event, event.data) for event in found if event.event.startswith("webhook.")]


def deliver(service: "Service", job_id: str, *, until: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    """Let the reconciler work until the log holds these entries."""
    deadline = time.monotonic() + 120
    while [name for name, _ in entries(service, job_id)] != list(until):
        assert time.monotonic() < deadline, entries(service, job_id)
        service.app.state.reconciler.reconcile_once()
        time.sleep(0.02)
    with service.database.read() as session:
        left = session.execute(sa.select(sa.func.count()).select_from(WebhookRow)).scalar_one()
    assert left == (0 if until[-1] != "webhook.retrying" else 1)
    return entries(service, job_id)


def finish(service: "Service", job_id: str) -> None:
    (lease,) = service.claim(job_id)
    service.finish(lease)


def test_the_end_of_a_job_is_told_and_signed(start: "Start", told: Settings, receiver: Receiver) -> None:
    service = start(told)
    service.load_model()
    job_id = service.submit(webhook={"url": receiver.url}, tags=["night"])
    finish(service, job_id)
    ((_, entry),) = deliver(service, job_id, until=["webhook.delivered"])
    ((headers, body),) = receiver.got
    sent = json.loads(body)
    shown = service.client.get(f"/v1/jobs/{job_id}").json()
    del shown["spec"]
    assert sent["data"] == shown
    assert (sent["type"], sent["created_at"]) == ("job.completed", shown["finished_at"])
    assert (headers[":path"], headers["host"]) == ("/hook?of=tests", receiver.host)
    assert entry == {
        "webhook_id": headers["webhook-id"], "type": "job.completed", "attempt": 1, "status_code": 204,
    }  # fmt: skip
    # the check that receivers make
    client = openai.OpenAI(api_key="none", webhook_secret=SECRET)
    client.webhooks.verify_signature(body, headers)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.verify_signature(body + b" ", headers)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.verify_signature(body, headers, secret="whsec_b3RoZXI=")


def test_a_delivery_is_repeated_until_it_is_taken(start: "Start", told: Settings, receiver: Receiver) -> None:
    service = start(told)
    receiver.answers[:] = [500, 302, 429]
    job_id = service.submit(webhook={"url": receiver.url})
    finish(service, job_id)
    log = deliver(service, job_id, until=[*["webhook.retrying"] * 3, "webhook.delivered"])
    assert [data["attempt"] for _, data in log] == [1, 2, 3, 4]
    assert "HTTP 500" in log[0][1]["reason"]
    assert "redirect" in log[1][1]["reason"]
    assert len({body for _, body in receiver.got}) == 1
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    assert {headers[":path"] for headers, _ in receiver.got} == {"/hook?of=tests"}


@pytest.mark.parametrize(("answers", "attempts"), [([503] * 3, 3), ([410], 1)])
def test_a_delivery_is_given_up(
    start: "Start", told: Settings, receiver: Receiver, answers: list[int], attempts: int
) -> None:
    service = start(told.model_copy(update={"webhook_max_attempts": 3}))
    receiver.answers[:] = answers
    job_id = service.submit(webhook={"url": receiver.url})
    finish(service, job_id)
    deliver(service, job_id, until=[*["webhook.retrying"] * (attempts - 1), "webhook.failed"])
    assert len(receiver.got) == attempts


@pytest.mark.soak
def test_a_silent_receiver_is_asked_again_by_the_next_process(
    start: "Start", told: Settings, receiver: Receiver
) -> None:
    service = start(told.model_copy(update={"webhook_timeout_seconds": 0.2, "webhook_retry_seconds": 2}))
    receiver.open.clear()
    job_id = service.submit(webhook={"url": receiver.url})
    finish(service, job_id)
    log = deliver(service, job_id, until=["webhook.retrying"])
    assert "no answer within 0.2 s" in log[0][1]["reason"]
    service.client.__exit__(None, None, None)
    receiver.open.set()
    again = start(told)
    deliver(again, job_id, until=["webhook.retrying", "webhook.delivered"])
    assert receiver.bodies[0] == receiver.bodies[1]


@pytest.mark.soak
def test_an_answer_that_never_ends_keeps_nobody_waiting(
    start: "Start", told: Settings, receiver: Receiver
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as slow:
        host = f"127.0.0.1:{slow.getsockname()[1]}"
        is_over = threading.Event()

        def drip() -> None:
            connection, _ = slow.accept()
            with connection, suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nx: ")
                while not is_over.wait(0.02):
                    connection.sendall(b"a")

        thread = threading.Thread(target=drip)
        thread.start()
        changes = {"webhook_hosts": (host, receiver.host), "webhook_timeout_seconds": 2}
        service = start(told.model_copy(update=changes | {"webhook_max_attempts": 1}))
        first = service.submit(webhook={"url": f"http://{host}/"})
        finish(service, first)
        ((_, entry),) = deliver(service, first, until=["webhook.failed"])
        assert "no answer within 2 s" in entry["reason"]
        is_over.set()
        thread.join(120)
    other = service.submit(webhook={"url": receiver.url})
    finish(service, other)
    deliver(service, other, until=["webhook.delivered"])


def test_only_the_ends_that_were_asked_for_are_told(
    start: "Start", told: Settings, receiver: Receiver
) -> None:
    service = start(told)
    silent = service.submit(webhook={"url": receiver.url, "events": ["job.failed"]})
    finish(service, silent)
    cancelled = service.submit(webhook={"url": receiver.url, "events": ["job.cancelled"]})
    service.client.post(f"/v1/jobs/{cancelled}/cancel")
    late = service.submit(webhook={"url": receiver.url}, deadline_seconds=0.001)
    time.sleep(0.01)
    deliver(service, late, until=["webhook.delivered"])
    assert entries(service, silent) == []
    told_of = {body["type"]: body["data"] for body in receiver.bodies}
    assert {name: data["id"] for name, data in told_of.items()} == {
        "job.cancelled": cancelled, "job.failed": late,
    }  # fmt: skip
    assert told_of["job.failed"]["error"]["type"] == "deadline_exceeded"


def test_the_service_has_a_webhook_of_its_own(start: "Start", told: Settings, receiver: Receiver) -> None:
    service = start(told.model_copy(update={"webhook_hosts": (), "webhook_url": receiver.url}))
    job_id = service.submit()
    finish(service, job_id)
    deliver(service, job_id, until=["webhook.delivered"])
    assert receiver.bodies[0]["data"]["id"] == job_id
    assert receiver.url not in service.client.get(f"/v1/jobs/{job_id}").text


def test_an_exported_folder_does_not_tell_the_receiver(
    start: "Start", told: Settings, receiver: Receiver
) -> None:
    service = start(told)
    job_id = service.submit(webhook={"url": f"{receiver.url}?token=t0ken"})
    finish(service, job_id)
    assert "t0ken" in service.client.get(f"/v1/jobs/{job_id}").text
    archive = gzip.decompress(service.client.get(f"/v1/jobs/{job_id}/export").content)
    assert b'"spec"' in archive
    assert b"t0ken" not in archive


def test_a_deleted_job_tells_nobody(start: "Start", told: Settings, receiver: Receiver) -> None:
    service = start(told)
    job_id = service.submit(webhook={"url": receiver.url})
    service.client.post(f"/v1/jobs/{job_id}/cancel")
    with service.database.write() as session:
        job_deletion.delete(session, job_id)
        assert session.scalars(sa.select(WebhookRow)).all() == []


def test_a_host_that_resolves_to_a_private_address_is_not_told(
    start: "Start", told: Settings, receiver: Receiver
) -> None:
    service = start(told.model_copy(update={"webhook_hosts": ("localhost",), "webhook_max_attempts": 1}))
    job_id = service.submit(webhook={"url": f"http://localhost:{receiver.port}/hook"})
    finish(service, job_id)
    ((_, entry),) = deliver(service, job_id, until=["webhook.failed"])
    assert "private address" in entry["reason"]
    assert receiver.got == []


def test_a_name_is_resolved_once_and_what_was_checked_is_connected_to(
    start: "Start", told: Settings, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server that answers otherwise the second time leads nowhere else."""
    service = start(told.model_copy(update={"webhook_hosts": ("localhost", receiver.host)}))
    resolve, asked = socket.getaddrinfo, []

    def rebinding(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        if host == "localhost":
            asked.append(host)
            host = "127.0.0.1" if len(asked) == 1 else "127.0.0.2"
        return resolve(host, port, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    job_id = service.submit(webhook={"url": f"http://localhost:{receiver.port}/hook"})
    finish(service, job_id)
    deliver(service, job_id, until=["webhook.delivered"])
    assert asked == ["localhost"]
    assert receiver.got[0][0]["host"] == f"localhost:{receiver.port}"


def test_a_host_that_is_no_longer_allowed_is_not_told(
    start: "Start", told: Settings, receiver: Receiver
) -> None:
    job_id = start(told).submit(webhook={"url": receiver.url})
    service = start(told.model_copy(update={"webhook_hosts": ()}))
    finish(service, job_id)
    ((_, entry),) = deliver(service, job_id, until=["webhook.failed"])
    assert "ACTOGRAPH_WEBHOOK_HOSTS" in entry["reason"]
    assert receiver.got == []


def test_other_places_are_refused(
    start: "Start", told: Settings, problem: "Problem", subtests: pytest.Subtests
) -> None:
    for url in [
        "http://169.254.169.254/latest/meta-data",
        "http://hooks.example.com.evil.example/",
        "http://127.0.0.1:1/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0/",
        "http://[::ffff:127.0.0.1]/",
        "http://hooks.example.com.:80/",
        "http://hooks.example.com%00.evil.example/",
        "http://hooks.example.com:8080@evil.example/",
        "http://hooks.example.com\\@evil.example/",
        "ftp://hooks.example.com/",
        "http://hooks.example.com:99999/",
        "https://höks.example.com/",
        "//hooks.example.com/",
        "",
    ]:
        with subtests.test(url=url):
            service = start(told.model_copy(update={"webhook_hosts": ("hooks.example.com",)}))
            spec = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "a"}], "webhook": {"url": url}}
            problem(service.client.post("/v1/jobs", json=spec), 422, pointer="/webhook/url")
            for allowed in ("https://hooks.example.com/x", "http://HOOKS.example.com:8080/"):
                service.submit(webhook={"url": allowed})


def test_without_a_secret_webhooks_are_refused(
    service: "Service", problem: "Problem", receiver: Receiver
) -> None:
    spec = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "a"}], "webhook": {"url": receiver.url}}
    problem(service.client.post("/v1/jobs", json=spec), 422, pointer="/webhook", says="WEBHOOK_SECRET")
