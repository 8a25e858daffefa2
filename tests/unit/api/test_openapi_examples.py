"""The OpenAPI document is complete: every body has an example that fits, and every route says what it is."""

import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from api.app import TAGS, create_app
from api.auth import OPEN_PATHS
from tests.support.routes import operations


def test_every_body_has_a_description_and_examples_that_fit(subtests: pytest.Subtests) -> None:
    document = create_app().openapi()
    for route, operation in operations().items():
        content = operation.get("requestBody", {}).get("content", {}).get("application/json")
        if content is None:
            continue
        members = content["schema"].get("oneOf") or content["schema"].get("anyOf") or [content["schema"]]
        for member in members:
            if "$ref" not in member:
                continue
            name = member["$ref"].rpartition("/")[2]
            with subtests.test(route=route, name=name):
                schema: dict[str, Any] = document["components"]["schemas"][name]
                assert schema["description"]
                whole = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
                for example in schema["examples"]:
                    Draft202012Validator(whole).validate(example)


def test_every_route_says_what_it_is_and_how_it_fails() -> None:
    names = []
    for (method, path), operation in operations().items():
        names.append(operation["operationId"])
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", operation["operationId"]), (method, path)
        assert operation["summary"], (method, path)
        assert set(operation["tags"]) <= set(TAGS), (method, path)
        assert "application/problem+json" in operation["responses"]["default"]["content"]
        assert ("security" in operation) == (path not in OPEN_PATHS), (method, path)
    assert len(set(names)) == len(names)
