"""Bodies that are refused: the answer reaches clients that send all of it first, and nothing is stored."""

import io
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from actograph.contract.errors import PayloadTooLarge
from actograph.settings import Settings
from tests.integration.api.conftest import Keyed, Problem, Service, Start, StoreWithDisk
from tests.support.servers.application import Application

MIB = 1 << 20
#: more than the buffers of a connection hold
LARGE = 24 * MIB


@pytest.fixture
def limited(start: Start, settings: Settings) -> Iterator[str]:
    served = Application(start(settings.model_copy(update={"max_body_bytes": MIB})).app)
    yield served.url
    served.stop()


def test_clients_that_send_all_first_see_the_answer(limited: str, subtests: pytest.Subtests) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(LARGE // MIB):
            yield bytes(MIB)

    headers = {"Content-Type": "application/json"}
    for body in (bytes(LARGE), pieces):
        with subtests.test(client="urllib", chunked=callable(body)):
            data: Any = body() if callable(body) else body
            request = urllib.request.Request(f"{limited}/v1/jobs", data=data, headers=headers)
            with pytest.raises(urllib.error.HTTPError) as raised:
                urllib.request.urlopen(request, timeout=60)
            assert raised.value.code == PayloadTooLarge.status
            assert b"ACTOGRAPH_MAX_BODY_BYTES" in raised.value.read()
        with subtests.test(client="requests", chunked=callable(body)), requests.Session() as session:
            session.trust_env = False
            data = body() if callable(body) else body
            answer = session.post(f"{limited}/v1/jobs", data=data, headers=headers, timeout=60)
            assert answer.status_code == PayloadTooLarge.status
            # the connection goes on
            assert session.get(f"{limited}/livez", timeout=60).status_code == 200


def test_an_upload_without_role_or_room_is_refused_before_it_is_read(
    keyed: Keyed, problem: Problem, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    spooled: list[int] = []

    class Counted(io.BytesIO):
        def write(self, data: Any) -> int:
            spooled.append(len(data))
            return super().write(data)

        def rollover(self) -> None: ...

    monkeypatch.setattr("starlette.formparsers.SpooledTemporaryFile", lambda **_: Counted())
    reader = keyed.headers(keyed.make_key("read"))
    small = keyed.headers(keyed.make_key("submit", owner="small", quota_bytes=3 * MIB))
    admin = keyed.headers()

    def send(headers: dict[str, str], *, chunked: bool = False) -> Any:
        form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
        body = form + bytes(LARGE) + b"\r\n--b--\r\n"
        content: Any = (body[at : at + MIB] for at in range(0, len(body), MIB)) if chunked else body
        headers = headers | {"Content-Type": "multipart/form-data; boundary=b"}
        spooled.clear()
        return keyed.client.post("/v1/files", content=content, headers=headers)

    with subtests.test("role"):
        problem(send(reader), 403, "forbidden")
        assert not spooled
    with subtests.test("quota"):
        problem(send(small), 422, "quota_exceeded")
        assert not spooled
        problem(send(small, chunked=True), 422, "quota_exceeded")
        assert sum(spooled) <= 17 * MIB, "as soon as it is known"
    with subtests.test("room"):
        services = keyed.app.state.services
        floor = services.settings.disk_floor_bytes
        disk = StoreWithDisk(services.store, floor + MIB)
        with monkeypatch.context() as patched:
            patched.setitem(vars(services), "store", disk)
            problem(send(admin), 507, "storage_full")
            assert not spooled
    assert send(admin).status_code == 200


def test_fields_of_an_upload_are_checked(service: Service, problem: Problem, settings: Settings) -> None:
    def upload(files: Any = None, **form: Any) -> Any:
        return service.client.post("/v1/files", files=files or {"file": ("a", b"x")}, data=form)

    problem(upload(purpos="batch"), 422, pointer="/purpos", says="Did you mean 'purpose'")
    problem(upload(purpose=["batch", "dataset"]), 422, pointer="/purpose", says="given twice")
    problem(upload(purpose="two words"), 422, pointer="/purpose")
    problem(upload(**{"expires_after[seconds]": "soon"}), 422, says="expires_after[seconds]")
    problem(upload({"data": ("a", b"x")}), 422, says="no file in the field file")
    problem(service.client.post("/v1/files", json={"file": "x"}), 422, says="multipart/form-data")
    problem(service.client.post("/v1/files"), 422, says="multipart/form-data")
    broken = {"Content-Type": "multipart/form-data; boundary=b"}
    problem(service.client.post("/v1/files", content=b"no form", headers=broken), 422)
    assert not [path for path in Path(settings.home / "artifacts").rglob("*") if path.is_file()]
