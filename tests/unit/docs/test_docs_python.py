"""Python in the docs can be compiled, and what it takes from the client is there."""

import ast
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from actograph.client import Client
from actograph.client.jobs import JobHandle
from actograph.client.sessions import SessionHandle


def imported(tree: ast.AST) -> set[str]:
    """Names taken from the package; each must be there."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "actograph":
            module = importlib.import_module(node.module)
            for name in node.names:
                there = hasattr(module, name.name) or importlib.util.find_spec(f"{node.module}.{name.name}")
                assert there, f"{node.module} has no {name.name}"
                found.add(name.name)
    return found


def test_python(blocks: Callable[[str], list[Any]], subtests: pytest.Subtests) -> None:
    for block in blocks("python"):
        with subtests.test(block.place):
            check(block)


def check(block: Any) -> None:
    tree = ast.parse(block.text)
    compile(tree, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names = imported(tree)
    if not names:  # then `client` is another package's
        return
    client = Client("http://127.0.0.1:1", "")
    known: dict[str, Any] = {"client": client, "job": JobHandle, "session": SessionHandle}
    known |= {f"client.{name}": resource for name, resource in vars(client).items()}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (of := known.get(ast.unparse(node.value))) is not None:
            fields = getattr(of, "model_fields", {})
            assert hasattr(of, node.attr) or node.attr in fields, ast.unparse(node)


def test_the_first_example_is_short(blocks: Callable[[str], list[Any]]) -> None:
    first = next(block.text for block in blocks("python") if block.page == "README.md")
    assert len([line for line in first.splitlines() if line]) <= 12
    assert not any(isinstance(node, ast.Dict) for node in ast.walk(ast.parse(first)))
