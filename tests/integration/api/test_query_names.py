"""Query parameters that a route does not declare, or whose value is outside of a closed set, are refused."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import pytest
from fastapi import APIRouter
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute

from api.dependencies import query_parameters
from tests.integration.api.conftest import EMBED, Problem, Service
from tests.support.routes import address, operations

UNKNOWN = "conditon"


def api_routes(router: Any) -> Iterator[APIRoute]:
    for route in router.routes:
        inner = getattr(route, "original_router", None)
        if isinstance(inner, APIRouter):
            yield from api_routes(inner)
        elif isinstance(route, APIRoute):
            yield route


def test_every_documented_route_refuses_an_unknown_name(
    service: Service, problem: Problem, subtests: pytest.Subtests
) -> None:
    assert len(operations()) > 60
    for method, path in operations():
        with subtests.test(method=method, path=path):
            # a body of the right kind comes first, whatever it holds
            body = {"json": {}} if method in ("POST", "PATCH") and path != "/v1/files" else {}
            if path == "/v1/files" and method == "POST":
                body = {"files": {"file": ("a", b"x")}}
            answer = service.client.request(method, address(path), params={UNKNOWN: "x"}, **body)
            status = 400 if path in OPENAI else 422
            problem(answer, status, "invalid_request", says=f"unknown query parameter '{UNKNOWN}'")


OPENAI = {"/v1/chat/completions", "/v1/completions", "/v1/responses"}


def test_every_page_refuses_an_unknown_name(service: Service, subtests: pytest.Subtests) -> None:
    walked = 0
    pages = [route for route in api_routes(service.app) if not route.include_in_schema]
    for route in pages:
        path = route.path_format
        if path.startswith("/{vector_id}") or not path:
            continue  # vectors under the name of older scripts, which the document has under the new one
        for method in route.methods:
            walked += 1
            with subtests.test(method=method, path=path):
                answer = service.client.request(method, address(path), params={UNKNOWN: "x"})
                assert answer.status_code == 422, answer.text
                assert method == "HEAD" or f"unknown query parameter '{UNKNOWN}'" in answer.text
    assert walked > 25


def test_closed_sets_refuse_other_values(service: Service, subtests: pytest.Subtests) -> None:
    """Every query parameter whose values are an enumeration or a boolean, on documented routes and pages."""
    walked = 0
    for route in api_routes(service.app):
        path = route.path_format or "/v1/vectors"
        path = f"/v1/vectors{path}" if path.startswith("/{vector_id}") else path
        required = {"all": "true", "start": "0", "stop": "1", "hook": "embed", "of": "norm", "token": "0"}
        given = {name: required[name] for name in query_parameters(route.dependant) if name in required}
        for name in closed(route.dependant):
            for method in route.methods:
                walked += 1
                with subtests.test(method=method, path=path, name=name):
                    answer = service.client.request(method, address(path), params=given | {name: "nope"})
                    assert answer.status_code == 422, answer.text
                    assert name in answer.text
    assert walked > 25


def closed(dependant: Dependant) -> set[str]:
    """Query parameters with a closed set of values."""
    found = set()
    for parameter in dependant.query_params:
        info = parameter.field_info
        fields = {parameter.alias: info}
        if hasattr(info.annotation, "model_fields"):
            fields = info.annotation.model_fields
        found |= {name for name, field in fields.items() if is_closed(field.annotation)}
    return found.union(*(closed(one) for one in dependant.dependencies))


def is_closed(annotation: Any) -> bool:
    members = [one for one in get_args(annotation) or [annotation] if one is not type(None)]
    if get_origin(annotation) is Literal:
        return True
    return all(get_origin(one) is Literal or one is bool or hasattr(one, "__members__") for one in members)


def test_a_misspelt_filter_deletes_nothing(service: Service, problem: Problem) -> None:
    (lease,) = service.claim(service.submit(capture={"hooks": ["embed"]}), 1)
    session_id = service.finish(lease, tensors=EMBED)
    route = "/v1/activations/sessions"
    for query, near in [
        (f"job_id={lease.job_id}&conditon=x", "condition"),
        (f"job_id={lease.job_id}&dry-run=true", "dry_run"),
        (f"job_id={lease.job_id}&dryrun=true", "dry_run"),
        (f"jobid={lease.job_id}&all=true", "job_id"),
    ]:
        problem(service.client.delete(f"{route}?{query}"), 422, says=f"Did you mean '{near}'")
    # the last of two values would win in silence
    problem(service.client.delete(f"{route}?tag=a&tag=b"), 422, says="given 2 times")
    problem(
        service.client.get(f"/v1/jobs/{lease.job_id}/matrix?hook=embed&postions=generated"),
        422,
        pointer="/postions",
        says="Did you mean 'positions'",
    )
    assert service.client.get(f"{route}/{session_id}").status_code == 200
    assert service.client.delete(f"{route}?job_id={lease.job_id}&dry_run=true").json()["sessions"] == 1


def test_a_job_without_such_a_condition_says_which_it_has(service: Service, problem: Problem) -> None:
    job_id = service.submit(conditions=[{"name": "plain"}, {"name": "career"}])
    path = f"/v1/jobs/{job_id}/samples"
    assert len(service.client.get(path, params={"condition": "career"}).json()["data"]) == 1
    problem(service.client.get(path, params={"condition": "carer"}), 422, says="the job has plain, career")
