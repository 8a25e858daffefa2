"""GET /v1/jobs/{id}/events: complete, in order, resumable, and over when the job is."""

import json
import threading
from itertools import count
from typing import Any

import httpx
import pytest

from api import auth
from api.pages import live
from api.reading import sse
from tests.integration.api.conftest import Keyed, Service, capture_spec
from tests.support.servers.application import Application


def parse(text: str) -> list[dict[str, Any]]:
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            body = json.loads(fields["data"])
            assert str(body["id"]) == fields["id"]
            assert body["event"] == fields["event"]
            found.append(body)
    return found


def ended_job(service: Service) -> str:
    job_id = service.submit(inputs=[{"prompt": "a"}, {"prompt": "b"}])
    for lease in service.claim(job_id, 2):
        service.finish(lease)
    return job_id


@pytest.mark.usefixtures("one_progress_event")
def test_the_whole_log_of_an_ended_job_is_sent_and_the_stream_ends(service: Service) -> None:
    job_id = ended_job(service)
    answer = service.client.get(f"/v1/jobs/{job_id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    log = parse(answer.text)
    assert [e["event"] for e in log] == ["job.queued", "job.started", "job.progress", "job.completed"]
    assert {e["job_id"] for e in log} == {job_id}
    assert log[2]["data"] == {"total": 2, "completed": 1, "failed": 0}
    check_resumption(service, f"/v1/jobs/{job_id}/events", log)


def check_resumption(service: Service, url: str, whole: list[dict[str, Any]]) -> None:
    """After any event, named by header or by parameter, without gap or repeat."""
    for place, event in enumerate(whole[:-1]):
        for seen in ({"headers": {"Last-Event-ID": str(event["id"])}}, {"params": {"after": event["id"]}}):
            answer = service.client.get(url, **seen)
            assert parse(answer.text) == whole[place + 1 :]


def test_events_arrive_while_the_job_runs(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(sse, "PING_SECONDS", 0.0)
    job_id = service.submit()
    looks, has_pinged, look = count(1), threading.Event(), sse.look

    def counted(*given: Any) -> sse.NewEvents:
        if next(looks) == 3:  # the first is the request's own, and a ping follows the second
            has_pinged.set()
        return look(*given)

    monkeypatch.setattr(sse, "look", counted)

    def work() -> None:
        has_pinged.wait()
        service.finish(*service.claim(job_id))

    worker = threading.Thread(target=work)
    worker.start()
    text = service.client.get(f"/v1/jobs/{job_id}/events").text
    worker.join()
    assert [e["event"] for e in parse(text)][-1] == "job.completed"
    queued, _, rest = text.partition("job.started")
    assert ": ping\n\n" in queued
    assert "job.completed" in rest


def test_the_stream_ends_when_the_job_is_deleted_or_the_service_stops(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sse, "POLL_SECONDS", 0.02)
    job_ids = [service.submit(), service.submit()]
    ends = [lambda: service.client.delete(f"/v1/jobs/{job_ids[0]}"), service.services.stopping.set]
    for job_id, end in zip(job_ids, ends, strict=True):
        timer = threading.Timer(0.2, end)
        timer.start()
        text = service.client.get(f"/v1/jobs/{job_id}/events").text
        assert [event["event"] for event in parse(text)] == ["job.queued"]
        timer.join()


def test_streams_end_once_their_key_is_revoked(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """The log of a job and the page's state, which both last as long as the client listens."""
    monkeypatch.setattr(auth, "RECHECK_SECONDS", 0.0)
    monkeypatch.setattr(live, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(sse, "PING_SECONDS", 0.0)
    served = Application(keyed.app)
    for path in ("/live", "/v1/jobs/{job_id}/events"):
        with subtests.test(path=path):
            key = keyed.make_key("submit", owner="alice")
            headers = keyed.headers(key)
            answer = keyed.client.post("/v1/jobs", json=capture_spec(), headers=headers)
            address = f"{served.url}{path}".replace("{job_id}", answer.json()["id"])
            with httpx.Client(trust_env=False, timeout=60) as client:
                with client.stream("GET", address, headers=headers) as stream:
                    assert stream.status_code == 200
                    pieces = stream.iter_text()
                    assert next(pieces)
                    (row,) = (
                        one
                        for one in keyed.client.get("/v1/keys", headers=keyed.headers()).json()["data"]
                        if one["owner"] == "alice" and one["revoked_at"] is None
                    )
                    keyed.client.delete(f"/v1/keys/{row['id']}", headers=keyed.headers())
                    list(pieces)  # it ends
                assert client.get(address, headers=headers).status_code == 401
    served.stop()
