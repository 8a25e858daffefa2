"""The frame of the dashboard: sign-in, errors as pages, headers, static files."""

from typing import TYPE_CHECKING

import pytest

from api.pages.frame import STATIC, local
from api.security.browser import COOKIE

if TYPE_CHECKING:
    from tests.integration.api.conftest import Keyed, Service

pytestmark = pytest.mark.integration

HTML = {"Accept": "text/html"}
ORIGIN = {"Origin": "http://127.0.0.1:8420"}


def sign_in(keyed: "Keyed", key: str) -> None:
    """Sign the client's browser in."""
    answer = keyed.client.post("/sign-in", data={"key": key, "next": "/jobs?tag=a"}, headers=HTML | ORIGIN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?tag=a")


def test_every_page_has_the_headers_of_a_page(service: "Service") -> None:
    for path in ("/", "/jobs"):
        answer = service.client.get(path, headers=HTML)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/html")
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'self';")
        assert "unsafe" not in policy
        assert answer.headers["cache-control"] == "no-store"
        assert "<style" not in answer.text
        assert " style=" not in answer.text
        assert "<script>" not in answer.text


def test_a_browser_without_a_key_is_led_to_the_sign_in_page_and_back(keyed: "Keyed") -> None:
    answer = keyed.client.get("/jobs?tag=a", headers=HTML)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=%2Fjobs%3Ftag%3Da")
    page = keyed.client.get(answer.headers["location"], headers=HTML)
    assert 'value="/jobs?tag=a"' in page.text
    assert '/jobs"' not in page.text  # no navigation
    sign_in(keyed, keyed.make_key("read"))
    assert keyed.client.get("/jobs", headers=HTML).status_code == 200


def test_a_program_without_a_key_gets_a_problem(keyed: "Keyed") -> None:
    answer = keyed.client.get("/jobs")
    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_the_cookie_is_kept_from_scripts_and_other_sites(keyed: "Keyed") -> None:
    data = {"key": "root-key"}
    cookie = keyed.client.post("/sign-in", data=data, headers=HTML | ORIGIN).headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert "root-key" not in cookie


def test_a_wrong_key_is_refused(keyed: "Keyed") -> None:
    answer = keyed.client.post("/sign-in", data={"key": "acto_wrong"}, headers=HTML | ORIGIN)
    assert answer.status_code == 401
    assert "not valid" in answer.text
    assert "set-cookie" not in answer.headers
    assert "acto_wrong" not in answer.text


def test_changes_from_another_origin_are_refused(keyed: "Keyed") -> None:
    sign_in(keyed, "root-key")
    for origin in ({}, {"Origin": "http://127.0.0.1:3000"}, {"Origin": "null"}):
        answer = keyed.client.post("/sign-in", data={"key": "root-key"}, headers=HTML | origin)
        assert answer.status_code == 403
        assert keyed.client.post("/v1/queue/pause", headers=origin).status_code == 403
        assert keyed.client.post("/sign-out", headers=HTML | origin).status_code == 403
    assert keyed.client.post("/v1/queue/pause", headers=ORIGIN).status_code == 200
    # a key in the header is no browser's, and needs no origin
    answer = keyed.client.post("/v1/queue/resume", headers=keyed.headers())
    assert answer.status_code == 200


def test_signing_out_and_a_revoked_key_end_the_session(keyed: "Keyed") -> None:
    sign_in(keyed, keyed.make_key("read"))
    keys = keyed.client.get("/v1/keys", headers=keyed.headers()).json()["data"]
    keyed.client.delete(f"/v1/keys/{keys[0]['id']}", headers=keyed.headers())
    assert keyed.client.get("/", headers=HTML).status_code == 303
    sign_in(keyed, "root-key")
    assert keyed.client.get("/", headers=HTML).status_code == 200
    assert keyed.client.post("/sign-out", headers=HTML | ORIGIN).status_code == 303
    assert keyed.client.get("/", headers=HTML).status_code == 303


def test_a_part_of_a_page_is_told_where_to_sign_in(keyed: "Keyed") -> None:
    answer = keyed.client.get("/jobs", headers=HTML | {"HX-Request": "true"})
    assert (answer.status_code, answer.headers["hx-redirect"]) == (401, "/sign-in")


@pytest.mark.parametrize("path", ["//evil.example", "/\\evil.example", "https://evil.example", "", "/a\nb"])
def test_sign_in_leads_to_this_service_only(path: str) -> None:
    assert local(path) == "/"
    assert local("/jobs?tag=a") == "/jobs?tag=a"


def test_errors_are_pages_for_browsers_and_problems_for_programs(service: "Service") -> None:
    for path in ("/nothing", "/jobs/job_x", f"/jobs/job_{'0' * 32}"):
        page = service.client.get(path, headers=HTML)
        assert page.status_code == 404
        assert page.headers["content-type"].startswith("text/html")
        assert "Nothing here" in page.text
    assert service.client.get("/nothing").headers["content-type"] == "application/problem+json"
    problem = service.client.get("/v1/nothing", headers=HTML)
    assert problem.headers["content-type"] == "application/problem+json"


def test_an_unexpected_error_is_a_page_without_details(
    service: "Service", caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("a secret")

    service.app.add_api_route("/broken", fail, methods=["GET"])
    answer = service.client.get("/broken", headers=HTML)
    assert answer.status_code == 500
    assert answer.headers["content-type"].startswith("text/html")
    assert "a secret" not in answer.text


def test_static_files_are_open_and_no_others(keyed: "Keyed") -> None:
    names = [path.name for path in STATIC.iterdir()]
    assert {"htmx.min.js", "app.js", "style.css"} <= set(names)
    for name in names:
        assert keyed.client.get(f"/static/{name}").status_code == 200
    for name in ("nothing.js", "..%2fframe.py", "%2e%2e%2fframe.py"):
        assert keyed.client.get(f"/static/{name}").status_code == 404


def test_pages_are_not_in_the_openapi_document(service: "Service") -> None:
    paths = service.client.get("/openapi.json").json()["paths"]
    assert not {path for path in paths if path.startswith(("/jobs", "/sign-", "/static"))}
    assert not {"/", "/live"} & set(paths)
