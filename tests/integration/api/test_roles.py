"""Every route has a role, and lets in nobody with less."""

from typing import TYPE_CHECKING

import pytest
from fastapi.routing import iter_route_contexts

from actograph.roles import Role
from api.app import create_app
from api.auth import OPEN_PATHS
from tests.support.routes import operations, role_of

if TYPE_CHECKING:
    from tests.integration.api.conftest import Keyed, Problem

pytestmark = pytest.mark.integration


#: written out a second time, so that a wrong role beside a route is seen
WRITTEN = """
read   GET    /openapi.json
read   GET    /docs
read   GET    /docs/oauth2-redirect
read   GET    /redoc
read   GET    /v1/jobs
read   GET    /v1/jobs/{job_id}
read   GET    /v1/jobs/{job_id}/results
read   GET    /v1/jobs/{job_id}/export
read   GET    /v1/jobs/{job_id}/comparison
read   GET    /v1/jobs/{job_id}/matrix
read   GET    /v1/jobs/{job_id}/samples
read   GET    /v1/jobs/{job_id}/samples/{sample_id}
read   GET    /v1/jobs/{job_id}/events
read   POST   /v1/estimate
read   GET    /v1/activations/sessions
read   GET    /v1/activations/sessions/stats
read   GET    /v1/activations/stats
read   GET    /v1/activations/session/{session_id}
read   GET    /v1/activations/sessions/{session_id}
read   GET    /v1/activations/sessions/{session_id}/manifest
read   GET    /v1/activations/sessions/{session_id}/tensors/{hook:path}
read   GET    /v1/activations/sessions/{session_id}/files/{name}
read   HEAD   /v1/activations/sessions/{session_id}/files/{name}
read   GET    /v1/files
read   GET    /v1/files/{file_id}
read   GET    /v1/files/{file_id}/content
read   GET    /v1/vectors
read   GET    /v1/interventions
read   GET    /v1/vectors/{vector_id}
read   GET    /v1/interventions/{vector_id}
read   GET    /v1/models
read   GET    /v1/models/{model:path}
read   GET    /v1/model/structure
read   GET    /v1/queue
read   GET    /metrics
read   GET    /v1/batches
read   GET    /v1/batches/{batch_id}
read   GET    /v1/capabilities
submit POST   /v1/jobs
submit DELETE /v1/jobs/{job_id}
submit POST   /v1/jobs/{job_id}/cancel
submit POST   /v1/jobs/{job_id}/retry
submit POST   /v1/jobs/{job_id}/rescore
submit POST   /v1/jobs/{job_id}/comparison/activations
submit DELETE /v1/activations/sessions
submit PATCH  /v1/activations/sessions
submit DELETE /v1/activations/session/{session_id}
submit PATCH  /v1/activations/session/{session_id}
submit DELETE /v1/activations/sessions/{session_id}
submit PATCH  /v1/activations/sessions/{session_id}
submit POST   /v1/files
submit POST   /v1/chat/completions
submit POST   /v1/completions
submit POST   /v1/batches
submit POST   /v1/batches/{batch_id}/cancel
submit DELETE /v1/files/{file_id}
submit POST   /v1/vectors
submit POST   /v1/interventions
submit DELETE /v1/vectors/{vector_id}
submit DELETE /v1/interventions/{vector_id}
admin  POST   /v1/models/load
admin  POST   /models/load
admin  GET    /v1/models/load/{load_id}
admin  POST   /v1/queue/pause
admin  POST   /v1/queue/resume
admin  GET    /v1/workers
admin  POST   /v1/store/gc
admin  POST   /v1/store/verify
admin  POST   /v1/keys
admin  GET    /v1/keys
admin  GET    /v1/keys/{key_id}
admin  PATCH  /v1/keys/{key_id}
admin  DELETE /v1/keys/{key_id}
"""
EXPECTED = {
    (method, path): Role(role)
    for role, method, path in (line.split() for line in WRITTEN.strip().splitlines())
}


def all_routes() -> set[tuple[str, str]]:
    """(method, path) of everything that the application answers; HEAD beside GET is the same route."""
    found = set()
    for route in iter_route_contexts(create_app().routes):
        methods, path = set(route.methods or ()), route.path
        assert path is not None
        found |= {(method, path) for method in methods if method != "HEAD" or "GET" not in methods}
    return found


def concrete(path: str) -> str:
    return path.replace("{hook:path}", "embed").replace("{", "").replace("}", "").replace(":path", "")


def test_every_route_has_the_role_that_is_written_here() -> None:
    assert {route for route in all_routes() if route[1] not in OPEN_PATHS} == set(EXPECTED)
    written = {(method, path.replace(":path", "")): role for (method, path), role in EXPECTED.items()}
    for route, operation in operations().items():
        assert role_of(operation) == written.get(route), route
    assert frozenset({"/livez", "/readyz", "/health"}) == OPEN_PATHS
    assert [[role.includes(other) for other in Role] for role in (Role.READ, Role.SUBMIT, Role.ADMIN)] == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


def test_every_route_refuses_who_has_no_key_or_the_wrong_one(keyed: "Keyed", problem: "Problem") -> None:
    keys = {role: keyed.make_key(role) for role in (Role.READ, Role.SUBMIT)}
    for method, path in all_routes():
        address = concrete(path)
        if path in OPEN_PATHS:
            assert keyed.client.request(method, address).status_code in (200, 503)
            continue
        for headers in ({}, keyed.headers("acto_" + "0" * 64), keyed.headers("wrong")):
            answer = keyed.client.request(method, address, headers=headers)
            assert answer.headers["www-authenticate"] == "Bearer"
            if method != "HEAD":
                problem(answer, 401, "unauthorized")
        for role, key in keys.items():
            answer = keyed.client.request(method, address, headers=keyed.headers(key))
            needed = EXPECTED[method, path]
            if needed is Role.READ or role is needed:
                assert answer.status_code not in (401, 403), (method, path, answer.text)
            else:
                found = problem(answer, 403, "forbidden")
                assert found["error"]["type"] == "permission_error"
                assert needed in found["detail"]


def test_the_most_urgent_priorities_are_for_admins(keyed: "Keyed", problem: "Problem") -> None:
    spec = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "Hello"}]}
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
