"""The whole service on Postgres and S3, from a start without a model to the deletion of all sessions."""

import hashlib
import os
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from actograph.client import Client
from actograph.contract.resources import Session
from actograph.demo import MODEL_DIR, PROBLEMS
from storage.artifacts.s3 import S3Store
from tests.support.servers import s3
from tests.support.servers.faulty_proxy import FaultyProxy
from tests.support.servers.s3 import S3Server

pytestmark = [pytest.mark.e2e, pytest.mark.integration]

LIMIT = 6
HOOK = "resid_post.1"


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[FaultyProxy]:
    """Between the service and the store, to see what is asked."""
    with FaultyProxy(s3_server.port) as proxy:
        yield proxy


@pytest.fixture
def service(
    up: Callable[..., Any],
    postgres_and_s3: Callable[[str], None],
    proxy: FaultyProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    postgres_and_s3(proxy.url)
    monkeypatch.setenv("ACTOGRAPH_LOG_LEVEL", "debug")
    started = up("--allow-model", f"demo={MODEL_DIR}", model="")
    started.await_ready()
    return started


def test_a_job_on_postgres_and_s3(
    service: Any, proxy: FaultyProxy, tmp_path: Path, wait: Callable[..., None]
) -> None:
    bucket, _, prefix = os.environ["ACTOGRAPH_ARTIFACT_URL"].removeprefix("s3://").partition("/")
    store = S3Store(bucket, prefix)
    with Client(service.url, "") as client, httpx.Client(base_url=service.url, timeout=60) as plain:
        assert [one.model for one in client.workers.list() if one.model != "=analysis"] == [""]
        job = client.submit(
            {
                "kind": "evaluation",
                "model": "demo",
                "dataset": {"file_id": client.files.upload(PROBLEMS).id},
                "limit": LIMIT,
                "sampling": {"max_tokens": 64},
                "capture": {"points": ["attn_in", "mlp_in", "resid_post"], "layers": "all"},
            }
        )
        assert "job.completed" in [event.event for event in client.jobs.events(job.id)][-2:], client.jobs.get(
            job.id
        )
        found = list(client.sessions.list(job_id=job.id))
        assert len(found) == LIMIT
        assert {p.prefix for p in store.list_prefixes("sessions")} == {f"sessions/{s.id}" for s in found}
        one = found[0]
        check_slices(client, proxy, store, one)
        check_download(client, plain, one, tmp_path)
        assert client.sessions.delete(one.id).deleted
        assert plain.get(f"/v1/activations/sessions/{one.id}").status_code == 404
        kept = {f"sessions/{s.id}" for s in found[1:]}
        wait(lambda: {p.prefix for p in store.list_prefixes("sessions")} == kept)
        answer = plain.request("DELETE", "/v1/activations/sessions", params={"job_id": job.id})
        assert answer.json()["sessions"] == LIMIT - 1
        wait(lambda: not list(store.list_prefixes("sessions")))
        assert "[+]store ok" in plain.get("/readyz").text
    assert service.stop() == 0
    assert not (service.home / "actograph.db").exists()
    assert not (service.home / "artifacts").exists()
    check_that_no_secret_was_said(service)


def check_slices(client: Client, proxy: FaultyProxy, store: S3Store, session: Session) -> None:
    """After the first look at a session, a slice is one request for its bytes."""
    tensor = client.sessions.get(session.id)[HOOK]
    whole = tensor[:]
    assert whole.shape == (session.rows, session.hooks[HOOK].shape[1])
    for start, stop in ((0, 1), (3, 8), (session.rows - 2, session.rows)):
        proxy.take_requests()
        assert np.array_equal(tensor[start:stop], whole[start:stop])
        asked = [
            r for r in proxy.take_requests() if urllib.parse.urlsplit(r.target).path.endswith(".safetensors")
        ]
        assert [r.method for r in asked] == ["GET"]
        first, last = (int(n) for n in asked[0].range.removeprefix("bytes=").split("-"))
        assert last - first + 1 == whole[start:stop].nbytes


def check_download(client: Client, plain: httpx.Client, session: Session, folder: Path) -> None:
    """A file comes from the store itself, by a URL that is signed for a while."""
    pulled = client.sessions.get(session.id).download(folder)
    for file in session.files:
        path = f"/v1/activations/sessions/{session.id}/files/{file.name}"
        answer = plain.get(path)
        assert answer.status_code == 307
        url = answer.headers["location"]
        assert urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)["X-Amz-Expires"] == ["900"]
        body = httpx.get(url).content
        assert hashlib.sha256(body).hexdigest() == file.sha256
        part = httpx.get(url, headers={"Range": "bytes=1-4"})
        assert (part.status_code, part.content) == (206, body[1:5])
        assert (pulled / file.name).read_bytes() == body


def check_that_no_secret_was_said(service: Any) -> None:
    """Not even at the debug level."""
    password = urllib.parse.urlsplit(os.environ["ACTOGRAPH_DATABASE_URL"]).password
    said = service.said() + "".join(p.read_text() for p in (service.home / "logs").glob("*.log"))
    assert password is not None
    assert password not in said
    assert len(said) > 1000
    assert s3.SECRET_KEY not in said
