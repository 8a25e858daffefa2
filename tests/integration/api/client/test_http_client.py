"""The client over HTTP: forms, pages, retries, streams, downloads."""

import hashlib
from pathlib import Path

import pytest
from starlette.responses import Response

from actograph.client import ApiError, Client, DownloadDamaged, ServiceUnreachable, UnexpectedAnswer
from actograph.contract.errors import InvalidRequest
from tests.integration.api.client.conftest import Wire, graded, problem
from tests.integration.api.conftest import ROOT_KEY, Keyed, Service, capture_spec


def busy(status: int) -> Response:
    """A proxy's answer in place of the service's."""
    return Response("<html>busy</html>", status, media_type="text/html")


def test_upload_sends_the_bytes_the_name_and_the_purpose(
    service: Service, client: Client, tmp_path: Path
) -> None:
    path = tmp_path / "problems é.jsonl"
    data = b'{"question": "1+1?", "answer": "2"}\n' * 40_000
    path.write_bytes(data)
    file = client.files.upload(path, "dataset")
    assert (file.bytes, file.filename, file.purpose) == (len(data), path.name, "dataset")
    stored = service.client.get(f"/v1/files/{file.id}/content").content
    assert hashlib.sha256(stored).digest() == hashlib.sha256(data).digest()


def test_submit_whose_answer_was_lost_makes_one_job(wire: Wire, client: Client) -> None:
    in_flight = problem(409, "idempotency_in_flight", "the first request is in progress")
    wire.faults = ["lose", in_flight]
    job = client.submit(capture_spec())
    assert [one.id for one in client.jobs.list()] == [job.id]
    assert len(wire.paths("POST")) == 3


def test_submit_errors_name_the_field(wire: Wire, client: Client) -> None:
    with pytest.raises(ApiError) as caught:
        client.submit(capture_spec(sampling={"temperature": -1}))
    error = caught.value
    assert (error.status, error.code) == (422, "invalid_request")
    assert error.errors[0].pointer == "/sampling/temperature"
    assert "/sampling/temperature" in str(error) or error.errors[0].detail in str(error)
    assert len(wire.seen) == 1


def test_reads_are_repeated_while_the_service_is_away(service: Service, wire: Wire, client: Client) -> None:
    job_id = service.submit()
    for faults in ([busy(502), busy(503), busy(504)], ["drop"] * 3):
        wire.faults = list(faults)
        wire.seen.clear()
        assert client.jobs.get(job_id).id == job_id
        assert len(wire.seen) == 4


def test_other_failures_are_not_repeated(wire: Wire, client: Client, subtests: pytest.Subtests) -> None:
    for status in (500, 403, 404):
        wire.faults = [busy(status)]
        wire.seen.clear()
        with subtests.test(status=status), pytest.raises(ApiError) as caught:
            client.jobs.get("job_1")
        assert caught.value.status == status
        assert len(wire.seen) == 1


def test_an_upload_is_not_repeated_once_it_was_sent(wire: Wire, client: Client, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "a"}\n')
    wire.faults = ["lose"]
    with pytest.raises(ServiceUnreachable):
        client.files.upload(path)
    assert len(wire.paths("POST")) == 1


def test_key_is_sent_and_its_absence_refused(keyed: Keyed, keyed_wire: Wire) -> None:
    keyed.client.post("/v1/jobs", json=capture_spec(), headers=keyed.headers())
    with Client(keyed_wire.url, "") as client, pytest.raises(ApiError) as caught:
        list(client.jobs.list())
    assert caught.value.status == 401
    with Client(keyed_wire.url, ROOT_KEY) as trusted:
        assert len(list(trusted.jobs.list())) == 1


def test_url_and_key_come_from_the_environment(
    keyed: Keyed, keyed_wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyed.client.post("/v1/jobs", json=capture_spec(), headers=keyed.headers())
    monkeypatch.setenv("ACTOGRAPH_URL", keyed_wire.url + "/")
    monkeypatch.setenv("ACTOGRAPH_API_KEY", ROOT_KEY)
    with Client() as client:
        assert len(list(client.jobs.list())) == 1


def test_a_proxy_of_the_environment_is_not_asked_for_loopback(
    service: Service, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.load_model()
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with Client(wire.url, "", retries=0) as client:
        assert client.ready()


def test_lists_follow_every_page_and_pass_filters_on(service: Service, wire: Wire, client: Client) -> None:
    made = [service.submit() for _ in range(7)]
    for job_id in made[::2]:
        service.client.post(f"/v1/jobs/{job_id}/cancel")
    assert [job.id for job in client.jobs.list(page_size=3)] == made[::-1]
    assert len(wire.seen) == 3
    cancelled = list(client.jobs.list(status="cancelled", page_size=3))
    assert [job.id for job in cancelled] == made[::2][::-1]


def test_events_come_once_each_over_broken_connections(service: Service, wire: Wire, client: Client) -> None:
    job_id, _ = graded(service, "yyn")
    whole = list(client.jobs.events(job_id))
    assert len(whole) > 3
    wire.seen.clear()
    wire.stream_cuts = [1, 0, 2]
    assert list(client.jobs.events(job_id)) == whole
    resumed = [seen.headers["last-event-id"] for seen in wire.seen]
    assert resumed == ["0", str(whole[0].id), str(whole[0].id), str(whole[2].id)]


def test_events_outlive_a_service_that_is_away_for_a_moment(
    service: Service, wire: Wire, client: Client
) -> None:
    job_id, _ = graded(service)
    wire.faults = [busy(503), "drop", busy(502)]
    assert [event.event for event in client.jobs.events(job_id)][-1] == "job.completed"


def test_downloads_are_verified_and_named(
    service: Service, wire: Wire, client: Client, tmp_path: Path
) -> None:
    _, (session_id,) = graded(service, "y")
    session = client.sessions.get(session_id)
    wire.seen.clear()
    wire.download_cuts = [100]
    folder = session.download(tmp_path)
    sizes = {file.name: file.bytes for file in session.files}
    assert {path.name: path.stat().st_size for path in folder.iterdir()} == sizes
    assert len([one for one in wire.seen if "/files/" in one.path]) == len(sizes) + 1, "the first was cut"
    wire.seen.clear()
    session.download(tmp_path)
    assert not [one for one in wire.seen if "/files/" in one.path], "verified files are kept"
    (stored,) = service.services.settings.home.rglob(f"{session_id}/manifest.json")
    stored.write_bytes(stored.read_bytes().replace(b"embed", b"enbed"))
    (folder / "manifest.json").write_bytes(b"old")
    with pytest.raises(DownloadDamaged, match="sha256"):
        session.download(tmp_path)
    assert {path.name for path in folder.iterdir()} == set(sizes)
    assert (folder / "manifest.json").read_bytes() == b"old"


def test_answers_of_another_version_are_refused(wire: Wire, client: Client) -> None:
    wire.faults = [Response('{"id": "x", "object": "y"}', media_type="application/json")]
    with pytest.raises(UnexpectedAnswer, match="same version"):
        client.sessions.get("ses_1")


def test_a_page_that_is_no_service_of_ours(wire: Wire, client: Client) -> None:
    wire.faults = [busy(200)]
    with pytest.raises(UnexpectedAnswer, match="is this an Actograph service"):
        client.jobs.get("job_1")


def test_slashes_in_ids_are_escaped(wire: Wire, client: Client) -> None:
    with pytest.raises(ApiError, match="there is no GET /v1/jobs/a/b"):
        client.jobs.get("a/b")
    assert wire.seen[-1].path == "/v1/jobs/a%2Fb"


def test_a_closed_client_says_so(service: Service, client: Client) -> None:
    job = client.jobs.get(service.submit())
    client.close()
    for read in (job.refresh, lambda: list(client.jobs.events(job.id))):
        with pytest.raises(InvalidRequest, match="the client is closed"):
            read()
