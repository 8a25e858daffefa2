"""Routes as the OpenAPI document names them."""

from functools import cache
from typing import Any

from actograph.contract.roles import Role
from api.app import create_app

#: stands for a parameter of a path
VALUES = {
    "job_id": "job_" + "0" * 32,
    "load_id": "job_" + "0" * 32,
    "sample_id": "smp_" + "0" * 32,
    "session_id": "ses_" + "0" * 32,
    "file_id": "file_" + "0" * 32,
    "vector_id": "vec_" + "0" * 32,
    "sae_id": "sae_" + "0" * 32,
    "batch_id": "batch_" + "0" * 32,
    "key_id": "key_" + "0" * 32,
    "hook": "embed",
    "layer": "0",
    "name": "manifest.json",
    "model": "nothing",
}


@cache
def operations() -> dict[tuple[str, str], dict[str, Any]]:
    """(method, path) -> operation, for every documented route."""
    paths = create_app().openapi()["paths"]
    return {
        (method.upper(), path): operation
        for path, methods in paths.items()
        for method, operation in methods.items()
    }


def role_of(operation: dict[str, Any]) -> Role | None:
    """The least role that may call a route; None for an open one."""
    named = [role for entry in operation.get("security", ()) for role in entry["apiKey"]]
    return next((role for role in (Role.ADMIN, Role.SUBMIT, Role.READ) if role in named), None)


def address(path: str) -> str:
    """A path with an id that nothing has."""
    for name, value in VALUES.items():
        path = path.replace("{" + name + "}", value)
    assert "{" not in path, f"{path}: name a value for its parameters in tests/support/routes.py"
    return path
