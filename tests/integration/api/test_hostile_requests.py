"""Requests that nobody sends by accident: each is answered as a client's fault, and changes nothing."""

import pytest
from starlette.testclient import TestClient

from tests.integration.api.conftest import Keyed, Problem, Service


def test_without_keys_pages_of_others_cannot_act(service: Service, subtests: pytest.Subtests) -> None:
    for host, origin, status in [
        ("127.0.0.1:8420", None, 200),
        ("localhost:8420", None, 200),
        ("[::1]:8420", None, 200),
        ("127.0.0.1:8420", "http://127.0.0.1:8420", 200),
        ("127.0.0.1:8420", "http://evil.example", 401),
        ("127.0.0.1:8420", "null", 401),
        ("127.0.0.1:8420", "http://127.0.0.1:8421", 401),
        ("evil.example", None, 401),
        ("127.0.0.1.evil.example", None, 401),
        ("localhost.evil.example:8420", None, 401),
        ("evil.example@127.0.0.1", "http://evil.example@127.0.0.1", 200),
        ("2130706433", None, 401),
        ("0.0.0.0:8420", None, 401),
        ("", None, 401),
        ("[::1", None, 401),
    ]:
        with subtests.test(host=host, origin=origin, status=status):
            headers = {"Host": host} | ({"Origin": origin} if origin is not None else {})
            answer = service.client.get("/v1/jobs", headers=headers)
            assert answer.status_code == status, answer.text
            assert not [name for name in answer.headers if name.startswith("access-control")]


def test_without_keys_other_machines_are_not_served_whatever_a_proxy_says(service: Service) -> None:
    other = TestClient(service.app, base_url="http://127.0.0.1:8420", client=("192.0.2.1", 5000))
    for name in ("X-Forwarded-For", "X-Real-IP", "Forwarded", "Client-IP"):
        assert other.get("/v1/jobs", headers={name: "127.0.0.1"}).status_code in (401, 403)


def test_without_keys_clients_of_a_local_proxy_are_refused(
    service: Service, keyed: Keyed, problem: Problem, subtests: pytest.Subtests
) -> None:
    local = {"Host": "127.0.0.1:8420"}
    assert service.client.get("/v1/jobs", headers=local).status_code == 200
    for name in ("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"):
        with subtests.test(name=name):
            answer = service.client.get("/v1/jobs", headers=local | {name: "for=192.0.2.1"})
            problem(answer, 403, "forbidden", says="actograph keys create")
            # with keys a proxy is as good as any client
            through = keyed.client.get("/v1/jobs", headers=keyed.headers() | {name: "192.0.2.1"})
            assert through.status_code == 200


def test_a_file_name_is_shown_and_never_a_path_or_a_header(keyed: Keyed, subtests: pytest.Subtests) -> None:
    made = set()
    for filename, shown in [
        ("../../etc/passwd", "passwd"),
        ("C:\\Windows\\win.ini", "win.ini"),
        ("/", "upload"),
        ("a\r\nSet-Cookie: x=1", None),
        ('a"; filename="b', None),
        ("a\u202eb\u0000c", None),
        ("é" * 400, "é" * 255),
    ]:
        with subtests.test(filename=filename):
            part = {"file": (filename, b"content")}
            answer = keyed.client.post("/v1/files", files=part, headers=keyed.headers())
            assert answer.status_code in (200, 400, 422), answer.text
            if answer.status_code != 200:
                continue
            body = answer.json()
            made.add(body["id"])
            assert shown is None or body["filename"] == shown
            assert body["filename"].isprintable()
            got = keyed.client.get(f"/v1/files/{body['id']}/content", headers=keyed.headers())
            assert got.content == b"content"
            assert got.headers["content-disposition"].isascii()
            assert "set-cookie" not in got.headers
    folder = keyed.services.settings.home / "artifacts" / "files"
    assert {path.name for path in folder.iterdir()} == made
