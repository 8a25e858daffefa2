"""Packages that the client uses where they are installed, and never needs."""

import importlib
from typing import Any

from actograph.contract.errors import ActographError


class PackageMissing(ActographError):
    """A package that this call needs is not installed."""

    code = "package_missing"
    status = 501


def package(name: str, purpose: str, *, module: str | None = None) -> Any:
    """The module, imported now.

    Args:
        name: what pip calls it.
        module: what Python calls it, where that differs.

    Raises:
        PackageMissing: saying what it is needed for and how to get it.
    """
    try:
        return importlib.import_module(module or name)
    except ModuleNotFoundError as error:
        raise PackageMissing(f"{purpose} needs {name}: pip install {name}") from error
