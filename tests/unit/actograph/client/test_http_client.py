"""The client against a real server: forms, pages, retries, streams, downloads."""

import hashlib
import socket
from pathlib import Path
from typing import Any

import httpx
import pytest

from actograph.client import (
    ApiError,
    Client,
    DownloadDamaged,
    ServiceUnreachable,
    UnexpectedAnswer,
    transport,
)
from actograph.contract import base
from actograph.contract.errors import InvalidRequest

SPEC = {"kind": "evaluation", "model": "demo", "dataset": {"file_id": "file_" + "0" * 32}}


def test_upload_sends_the_bytes_the_name_and_the_purpose(
    service: Any, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "problems é.jsonl"
    data = bytes(range(256)) * 5000
    path.write_bytes(data)
    file = client.files.upload(path, "dataset")
    assert file.bytes == len(data)
    _, purpose, received = service.uploads[file.id]
    assert (purpose, hashlib.sha256(received).digest()) == ("dataset", hashlib.sha256(data).digest())


def test_submit_whose_answer_was_lost_makes_one_job(service: Any, client: Client) -> None:
    service.faults = ["lose", "in_flight"]
    job = client.submit(SPEC)
    assert list(service.jobs) == [job.id]
    assert len(service.paths("POST")) == 3


def test_submit_errors_name_the_field(service: Any, client: Client) -> None:
    with pytest.raises(ApiError) as caught:
        client.submit({**SPEC, "sampling": {"temperature": -1}})
    error = caught.value
    assert (error.status, error.code) == (422, "invalid_request")
    assert error.errors[0].pointer == "/sampling/temperature"
    assert "/sampling/temperature" in str(error) or error.errors[0].detail in str(error)
    assert len(service.seen) == 1


def test_reads_are_repeated_while_the_service_is_away(service: Any, client: Client) -> None:
    job = service.add_job(1)
    for faults in ([502, 503, 504], ["drop"] * 3):
        service.faults = list(faults)
        service.seen.clear()
        assert client.jobs.get(job.id).model_dump() == job.model_dump()
        assert len(service.seen) == 4


def test_other_failures_are_not_repeated(service: Any, client: Client, subtests: pytest.Subtests) -> None:
    for status in (500, 403, 404):
        service.faults = [status]
        service.seen.clear()
        with subtests.test(status=status), pytest.raises(ApiError) as caught:
            client.jobs.get("job_1")
        assert caught.value.status == status
        assert len(service.seen) == 1


def test_an_upload_is_not_repeated_once_it_was_sent(service: Any, client: Client, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("{}")
    service.faults = ["lose"]
    with pytest.raises(ServiceUnreachable):
        client.files.upload(path)
    assert len(service.paths("POST")) == 1


def test_a_silent_service_is_told_from_an_absent_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            Client(url, "", timeout=0.1, retries=0) as client,
            pytest.raises(ServiceUnreachable, match="no answer"),
        ):
            client.jobs.get("job_1")


def test_key_is_sent_and_its_absence_refused(service: Any, client: Client) -> None:
    service.api_key = "secret"
    service.add_job(1)
    with pytest.raises(ApiError) as caught:
        list(client.jobs.list())
    assert caught.value.status == 401
    with Client(service.url, "secret") as trusted:
        assert len(list(trusted.jobs.list())) == 1


def test_url_and_key_come_from_the_environment(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    service.api_key = "secret"
    service.add_job(1)
    monkeypatch.setenv("ACTOGRAPH_URL", service.url + "/")
    monkeypatch.setenv("ACTOGRAPH_API_KEY", "secret")
    with Client() as client:
        assert len(list(client.jobs.list())) == 1


def test_a_proxy_of_the_environment_is_not_asked_for_loopback(
    service: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with Client(service.url, "", retries=0) as client:
        assert client.ready()


def test_lists_follow_every_page_and_pass_filters_on(service: Any, client: Client) -> None:
    for number in range(1, 8):
        service.add_job(number, status="failed" if number % 2 else "completed")
    assert [job.created_at for job in client.jobs.list(page_size=3)] == sorted(
        (job.created_at for job in service.jobs.values()), reverse=True
    )
    assert len(service.seen) == 3
    assert {str(job.status) for job in client.jobs.list(status="failed", page_size=3)} == {"failed"}
    assert len(list(client.jobs.list(status="failed", page_size=3))) == 4


def test_events_come_once_each_over_broken_connections(service: Any, client: Client) -> None:
    job = service.add_job(1, status="completed")
    progress = [("job.progress", {"total": 4, "completed": n, "failed": 0}) for n in range(1, 5)]
    service.add_events(
        job.id, ("job.queued", {"total": 4}), ("job.started", {}), *progress, ("job.completed", {})
    )
    service.stream_cuts = [2, 0, 3]
    assert [event.id for event in client.jobs.events(job.id)] == [1, 2, 3, 4, 5, 6, 7]
    resumed = [s.headers["last-event-id"] for s in service.seen if s.path.endswith("/events")]
    assert resumed == ["0", "2", "2", "5"]


def test_events_outlive_a_service_that_is_away_for_a_moment(service: Any, client: Client) -> None:
    job = service.add_job(1)
    service.add_events(job.id, ("job.queued", {}), ("job.completed", {}))
    service.faults = [503, "drop", 502]
    assert len(list(client.jobs.events(job.id))) == 2


def test_downloads_are_verified_and_named(service: Any, client: Client, tmp_path: Path) -> None:
    files = {"a.bin": bytes(range(256)) * 4000, "empty": b""}
    session = service.add_session(1, files)
    service.download_cuts = [100_000]
    folder = client.sessions.get(session.id).download(tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files
    assert len([s for s in service.seen if "/files/" in s.path]) == 3, "the first was cut"
    service.seen.clear()
    client.sessions.get(session.id).download(tmp_path)
    assert not [s for s in service.seen if "/files/" in s.path], "verified files are kept"
    service.stored[session.id, "a.bin"] = b"wrong"
    (folder / "a.bin").write_bytes(b"old")
    with pytest.raises(DownloadDamaged, match="sha256"):
        client.sessions.get(session.id).download(tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["a.bin", "empty"]
    assert (folder / "a.bin").read_bytes() == b"old"


def test_answers_of_another_version_are_told(service: Any, client: Client) -> None:
    session = service.add_session(1)
    service.sessions[session.id] = base.Deleted(id="x", object="y")
    with pytest.raises(UnexpectedAnswer, match="same version"):
        client.sessions.get(session.id)


def test_a_page_that_is_no_service_of_ours(service: Any, client: Client) -> None:
    service.faults = [200]
    with pytest.raises(UnexpectedAnswer, match="is this an Actograph service"):
        client.jobs.get("job_1")


def test_data_of_server_sent_events() -> None:
    body = (
        ': ping\n\nid: 4\nevent: job.progress\ndata: {"a":\ndata: 1}\n\ndata: bare \u2028 line\n\n'
        "event: empty\n\ndata:  two spaces\n\ndata:none\n\ndata: cut"
    )
    pieces = (body.encode()[start : start + 3] for start in range(0, len(body.encode()), 3))
    response = httpx.Response(200, content=pieces)
    assert list(transport.event_data(response)) == ['{"a":\n1}', "bare \u2028 line", " two spaces", "none"]


def test_slashes_in_ids_are_escaped(service: Any, client: Client) -> None:
    with pytest.raises(ApiError, match="no job a/b"):
        client.jobs.get("a/b")
    assert service.seen[-1].path == "/v1/jobs/a%2Fb"


def test_a_closed_client_says_so(service: Any, client: Client) -> None:
    job = client.jobs.get(service.add_job(1).id)
    client.close()
    for read in (job.refresh, lambda: list(client.jobs.events(job.id))):
        with pytest.raises(InvalidRequest, match="the client is closed"):
            read()
