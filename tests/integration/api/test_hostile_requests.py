"""Requests that nobody sends by accident: each is answered as a client's fault, and changes nothing."""

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

from api.auth import OPEN_PATHS
from storage.index import ids
from tests.support.routes import address, operations, role_of

if TYPE_CHECKING:
    from tests.integration.api.conftest import Keyed, Problem, Service

pytestmark = pytest.mark.integration

JSON = {"Content-Type": "application/json"}
#: bodies that no model of ours takes
BODIES = [
    b"",
    b"null",
    b'""',
    b"\xff\xfe",
    b"[" * 10_000,
    b'{"a":' * 10_000,
    b'{"a":NaN}',
    b'{"a":-Infinity}',
    b'{"a":1e999}',
    b'{"a":' + b"9" * 6_000 + b"}",
    b'{"\\ud800":1}',
    b'{"model":"\\ud800","name":"\\u0000"}',
    b'{"model":"a","model":"b","kind":"capture","kind":"chat"}',
]
#: in place of an id
IDS = [
    "%00", "%0a", "%2e%2e%2fjobs", "%252e%252e", "..%2f..%2fetc%2fpasswd", "%ff%fe", "'%20OR%201=1--",
    "%25s%25n", "x" * 60_000, "job_" + "%D9%A0" * 32,
    "job_" + "0" * 32 + "%0a", "job_" + "A" * 32, "job_" + "0" * 31,
]  # fmt: skip
NUMBERS = ["%D9%A3", "1e2", "-1", "NaN", "inf", "0x10", "9" * 30, "", "1%00"]


def unchanged(service: "Service", before: Any) -> None:
    assert service.queue_state() == before


def test_bodies_that_cannot_be_read_are_refused_everywhere(keyed: "Keyed", problem: "Problem") -> None:
    before = keyed.queue_state()
    tried = 0
    for (method, path), operation in operations().items():
        if "application/json" not in operation.get("requestBody", {}).get("content", {}):
            continue
        for body in BODIES:
            if body in (b"", b"null") and not operation["requestBody"].get("required"):
                continue
            tried += 1
            answer = keyed.client.request(method, address(path), content=body, headers=keyed.headers() | JSON)
            assert answer.status_code in (400, 404, 413, 422), (method, path, body[:40], answer.text)
            problem(answer, answer.status_code)
        packed = keyed.headers() | JSON | {"Content-Encoding": "gzip"}
        answer = keyed.client.request(method, address(path), content=gzip.compress(b"{}"), headers=packed)
        assert answer.status_code in (400, 422), (method, path)
    assert tried > 100
    unchanged(keyed, before)


def test_ids_that_are_none_are_not_found(keyed: "Keyed", problem: "Problem") -> None:
    headers = keyed.headers()
    for kind in ("jobs", "activations/sessions", "files", "interventions", "batches", "keys", "models/load"):
        for text in IDS:
            answer = keyed.client.get(f"/v1/{kind}/{text}", headers=headers)
            assert answer.status_code in (404, 422), (kind, text, answer.text)
            problem_body = answer.json()
            assert problem_body["status"] == answer.status_code
    for text in IDS:
        session = ids.new_session_id()
        for rest in (f"files/{text}", f"tensors/{text}"):
            answer = keyed.client.get(f"/v1/activations/sessions/{session}/{rest}", headers=headers)
            assert answer.status_code == 404, (rest, answer.text)
        assert keyed.client.get(f"/v1/models/{text}", headers=headers).status_code == 404
        found = keyed.client.get(f"/v1/model/structure?model={text}", headers=headers).status_code
        assert found in (404, 422), text


def test_numbers_that_are_none_are_refused(keyed: "Keyed") -> None:
    for text in NUMBERS:
        for query in (f"jobs?limit={text}", f"activations/sessions?sample_index={text}"):
            answer = keyed.client.get(f"/v1/{query}", headers=keyed.headers())
            assert answer.status_code == 422, (query, answer.text)
    for text in ("NaN", "inf", "-Infinity", "1e999"):
        answer = keyed.client.get(f"/v1/activations/sessions?created_after={text}", headers=keyed.headers())
        assert answer.status_code == 422, text


def test_other_methods_and_spellings_of_a_route_let_nobody_in(keyed: "Keyed") -> None:
    """Whatever an address is spelt like, the key's role is asked for the route that answers."""
    reader = keyed.headers(keyed.make_key("read", owner="alice"))
    for (method, pattern), operation in operations().items():
        path = address(pattern)
        if pattern in OPEN_PATHS:
            continue
        for verb in ("HEAD", "OPTIONS", "PUT", "TRACE", "PROPFIND"):
            assert keyed.client.request(verb, path).status_code == 401, (verb, path)
            answer = keyed.client.request(verb, path, headers=reader)
            assert answer.status_code in (403, 404, 405), (verb, path, answer.status_code)
        if role_of(operation) == "read":
            continue
        for spelt in (
            path + "/",
            path.replace("/v1/", "/v1//"),
            path.replace("/v1", "/%76%31"),
            path + "%2f",
        ):
            answer = keyed.client.request(method, spelt, headers=reader)
            assert answer.status_code in (403, 404, 405), (method, spelt, answer.status_code)


def test_without_keys_pages_of_others_cannot_act(service: "Service", subtests: pytest.Subtests) -> None:
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


def test_without_keys_other_machines_are_not_served_whatever_a_proxy_says(service: "Service") -> None:
    other = TestClient(service.app, base_url="http://127.0.0.1:8420", client=("192.0.2.1", 5000))
    for name in ("X-Forwarded-For", "X-Real-IP", "Forwarded", "Client-IP"):
        assert other.get("/v1/jobs", headers={name: "127.0.0.1"}).status_code in (401, 403)


@pytest.mark.parametrize(
    "name", ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"]
)
def test_without_keys_clients_of_a_local_proxy_are_refused(
    service: "Service", keyed: "Keyed", problem: "Problem", name: str
) -> None:
    local = {"Host": "127.0.0.1:8420"}
    assert service.client.get("/v1/jobs", headers=local).status_code == 200
    answer = service.client.get("/v1/jobs", headers=local | {name: "for=192.0.2.1"})
    problem(answer, 403, "forbidden", says="actograph keys create")
    # with keys a proxy is as good as any client
    assert keyed.client.get("/v1/jobs", headers=keyed.headers() | {name: "192.0.2.1"}).status_code == 200


@pytest.mark.parametrize(
    ("filename", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\Windows\\win.ini", "win.ini"),
        ("/", "upload"),
        ("a\r\nSet-Cookie: x=1", None),
        ('a"; filename="b', None),
        ("a\u202eb\u0000c", None),
        ("é" * 400, "é" * 255),
    ],
)
def test_a_file_name_is_shown_and_never_a_path_or_a_header(
    keyed: "Keyed", filename: str, shown: str | None
) -> None:
    part = {"file": (filename, b"content")}
    answer = keyed.client.post("/v1/files", files=part, headers=keyed.headers())
    assert answer.status_code in (200, 400, 422), answer.text
    if answer.status_code != 200:
        return
    body = answer.json()
    assert shown is None or body["filename"] == shown
    assert body["filename"].isprintable()
    got = keyed.client.get(f"/v1/files/{body['id']}/content", headers=keyed.headers())
    assert got.content == b"content"
    assert got.headers["content-disposition"].isascii()
    assert "set-cookie" not in got.headers
    assert [path.name for path in (keyed.services.settings.home / "artifacts" / "files").iterdir()] == [
        body["id"]
    ]


def test_parts_that_are_no_file_are_refused(keyed: "Keyed", problem: "Problem") -> None:
    boundary = "b"
    kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}

    def send(body: bytes, headers: dict[str, str] = kind) -> Any:
        return keyed.client.post("/v1/files", content=body, headers=keyed.headers() | headers)

    part = b'--b\r\nContent-Disposition: form-data; name="file"'
    end = b"\r\n--b--\r\n"
    for body in (
        b"",
        part + b"\r\n\r\ntext" + end,
        part + b'; filename="a"\r\n' + b"X: y\r\n" * 5_000 + b"\r\nx" + end,
        b"--b\r\n\r\nx" + end,
        (part + b'; filename="a"\r\n\r\nx\r\n') * 1_500 + b"--b--",
    ):
        answer = send(body)
        assert answer.status_code in (400, 422), (body[:80], answer.text)
        problem(answer, answer.status_code)
    for headers in ({"Content-Type": "multipart/form-data"}, {"Content-Type": "text/plain"}, JSON):
        answer = send(part + b'; filename="a"\r\n\r\nx' + end, headers)
        assert answer.status_code in (400, 422), answer.text
    assert keyed.client.get("/v1/files", headers=keyed.headers()).json()["data"] == []


def test_numbers_of_a_job_are_bounded(service: "Service", problem: "Problem") -> None:
    spec: dict[str, Any] = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "a"}]}
    before = service.queue_state()
    for value in ("1e400", "-1e400", "1" + "0" * 400, "NaN"):
        for field in ("epochs", "priority", "deadline_seconds", "max_consecutive_failures"):
            body = json.dumps(spec)[:-1] + f', "{field}": {value}}}'
            answer = service.client.post("/v1/jobs", content=body, headers=JSON)
            assert answer.status_code == 422, (field, value)
        for field in ("temperature", "top_p", "max_tokens", "seed"):
            body = json.dumps(spec)[:-1] + f', "sampling": {{"{field}": {value}}}}}'
            answer = service.client.post("/v1/jobs", content=body, headers=JSON)
            assert answer.status_code == 422, (field, value)
    unchanged(service, before)
