"""Requests and bodies in the docs: routes that the service has, and JSON that the contract takes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts
from pydantic import TypeAdapter

from actograph.contract import hooks
from actograph.contract.job_specs import EvaluationSpec, job_spec_adapter
from actograph.contract.model_loads import ModelLoadRequest
from actograph.contract.specs import CaptureSpec
from api.app import create_app

Blocks = Callable[[str], list[Any]]
#: answers, not requests: told by a field that only answers have
_OF_ANSWERS = ("id", "scores")


@pytest.fixture(scope="module")
def routes() -> set[tuple[str, str]]:
    return {
        (method, str(route.path))
        for route in iter_route_contexts(create_app().routes)
        for method in route.methods or ()
    }


def is_answered(routes: set[tuple[str, str]], method: str, path: str) -> bool:
    """Whatever is filled in: `{id}`, `$JOB`, the name of a hook."""
    given = path.partition("?")[0].strip("/").split("/")
    for known_method, known in routes:
        wanted = known.strip("/").split("/")
        if method == known_method and len(wanted) == len(given):
            pairs = zip(wanted, given, strict=True)
            if all(want.startswith("{") or want == have for want, have in pairs):
                return True
    return False


def test_requests_in_the_text(
    pages: dict[Path, str], routes: set[tuple[str, str]], subtests: pytest.Subtests
) -> None:
    for page, text in pages.items():
        for methods, path in re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE)[A-Z|]*) (/[^`\s]*)`", text):
            for method in methods.split("|"):
                with subtests.test(str(page)):
                    assert is_answered(routes, method, path), f"{method} {path}"


def test_requests_by_curl(blocks: Blocks, routes: set[tuple[str, str]], subtests: pytest.Subtests) -> None:
    for block in blocks("sh"):
        for command in re.findall(r"^curl (?:.*\\\n)*.*", block.text, re.MULTILINE):
            with subtests.test(block.place):
                check_curl(command, routes)


def check_curl(command: str, routes: set[tuple[str, str]]) -> None:
    path = re.search(r"\$ACTOGRAPH_URL(/[^\s\"']*)", command)
    assert path is not None, command
    stated = re.search(r"-X (\w+)", command)
    method = stated[1] if stated else "POST" if " -d " in command else "GET"
    assert is_answered(routes, method, path[1]), f"{method} {path[1]}"
    for body in re.findall(r"-d '(\{.*?\})'", command, re.DOTALL):
        if path[1] == "/v1/jobs":
            job_spec_adapter.validate_python(json.loads(body))


def form_of(value: dict[str, Any]) -> TypeAdapter[Any] | None:
    """What takes a JSON object of the docs; None where it is no request."""
    if "kind" in value:
        return job_spec_adapter
    if "model_id" in value:
        return TypeAdapter(ModelLoadRequest)
    if "points" in value:
        return TypeAdapter(CaptureSpec)
    if set(value) <= set(EvaluationSpec.model_fields):  # some fields of a job
        value |= {"kind": "evaluation", "model": "demo", "task": "gsm8k", "dataset": {"path": "rows.jsonl"}}
        return job_spec_adapter
    return None


def test_bodies(blocks: Blocks, subtests: pytest.Subtests) -> None:
    for block in blocks("json"):
        with subtests.test(block.place):
            check_body(block.text)


def check_body(block: str) -> None:
    text = re.sub(r",\s*\.\.\.", "", block)  # "and so on"
    value = json.loads(re.sub(r"\b(file|vec|job|ses)_\.\.\.", rf"\1_{0:032x}", text))
    form = form_of(value)
    if form is not None:
        form.validate_python(value)
    elif not any(name in value for name in _OF_ANSWERS):  # activations by the names of hooks
        assert [hooks.canonical(name) for name in value] == [entry["hook"] for entry in value.values()]
