"""Every route has a role, and lets in nobody with less."""

from functools import cache

import pytest
from fastapi.routing import iter_route_contexts

from actograph.contract.roles import Role
from api.app import create_app
from api.auth import OPEN_PATHS, STATIC
from tests.integration.api.conftest import Keyed, Problem, capture_spec
from tests.support.routes import operations, role_of

#: routes of FastAPI's own pages, all for readers
OF_DOCUMENTS = {
    ("GET", "/openapi.json"), ("GET", "/docs"), ("GET", "/docs/oauth2-redirect"), ("GET", "/redoc"),
}  # fmt: skip


@cache
def all_routes() -> dict[tuple[str, str], set[str]]:
    """(method, path) of everything that the application answers, and its roles.

    HEAD beside GET is the same route.
    """
    found = {}
    for route in iter_route_contexts(create_app().routes):
        methods, path = set(route.methods or ()), route.path
        assert path is not None
        dependencies = getattr(route, "dependencies", None) or ()
        roles = {scope for one in dependencies for scope in getattr(one, "scopes", None) or ()}
        found |= {(method, path): roles for method in methods if method != "HEAD" or "GET" not in methods}
    return found


def concrete(path: str) -> str:
    return path.replace("{hook:path}", "embed").replace("{", "").replace("}", "").replace(":path", "")


def needed(method: str, path: str) -> Role:
    """The least role that may call a route, by the OpenAPI document."""
    if (method, path) in OF_DOCUMENTS:
        return Role.READ
    operation = operations().get((method, path.replace(":path", "").replace("/interventions", "/vectors")))
    if operation is None:  # a page, or HEAD of a file
        return max((Role(role) for role in all_routes()[method, path]), key=list(Role).index)
    found = role_of(operation)
    assert found is not None, f"{method} {path} is open to everybody"
    return found


def test_every_change_needs_more_than_a_reader(subtests: pytest.Subtests) -> None:
    for method, path in all_routes():
        with subtests.test(method=method, path=path):
            is_harmless = path in OPEN_PATHS or method in ("GET", "HEAD") or path == "/v1/estimate"
            assert is_harmless or needed(method, path) is not Role.READ
    assert needed("POST", "/v1/jobs") is Role.SUBMIT
    for_admins = ("/v1/keys", "/v1/queue/", "/v1/store/", "/v1/workers", "/v1/models/load", "/models/load")
    assert {needed(*one) for one in all_routes() if one[1].startswith(for_admins)} == {Role.ADMIN}
    assert frozenset({"/livez", "/readyz", "/health", "/sign-in", "/sign-out"}) == OPEN_PATHS
    assert [[role.includes(other) for other in Role] for role in (Role.READ, Role.SUBMIT, Role.ADMIN)] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_every_route_refuses_who_has_no_key_or_the_wrong_one(keyed: Keyed, problem: Problem) -> None:
    keys = {role: keyed.make_key(role) for role in (Role.READ, Role.SUBMIT)}
    for method, path in all_routes():
        address = concrete(path)
        if path in OPEN_PATHS or path.startswith(STATIC):
            # a form without its origin is refused, whoever sends it
            expected = (403,) if method == "POST" else (200, 404, 503)
            assert keyed.client.request(method, address).status_code in expected
            continue
        for headers in ({}, keyed.headers("acto_" + "0" * 64), keyed.headers("wrong")):
            answer = keyed.client.request(method, address, headers=headers)
            assert answer.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                problem(answer, 401, "unauthorized")
        for role, key in keys.items():
            if path == "/live":  # a stream without an end
                continue
            answer = keyed.client.request(method, address, headers=keyed.headers(key))
            least = needed(method, path)
            if least is Role.READ or role is least:
                assert answer.status_code not in (401, 403), (method, path, answer.text)
            else:
                found = problem(answer, 403, "forbidden")
                assert found["error"]["type"] == "permission_error"
                assert least in found["detail"]


def test_the_most_urgent_priorities_are_for_admins(keyed: Keyed, problem: Problem) -> None:
    spec = capture_spec()
    submit, read = (keyed.headers(keyed.make_key(role)) for role in ("submit", "read"))
    before = keyed.queue_state()
    for path, headers in (("/v1/jobs", submit), ("/v1/estimate", submit), ("/v1/estimate", read)):
        answer = keyed.client.post(path, json=spec | {"priority": 0}, headers=headers)
        problem(answer, 403, "forbidden", "/priority", says="priority 0 needs an API key of the role admin")
    batch = {"input_file_id": "file_" + "0" * 32, "endpoint": "/v1/completions", "completion_window": "24h"}
    answer = keyed.client.post("/v1/batches", json=batch | {"priority": 0}, headers=submit)
    problem(answer, 403, "forbidden", "/priority")
    assert keyed.queue_state() == before
    assert keyed.client.post("/v1/jobs", json=spec | {"priority": 1}, headers=submit).status_code == 202
    assert (
        keyed.client.post("/v1/jobs", json=spec | {"priority": 0}, headers=keyed.headers()).status_code == 202
    )
