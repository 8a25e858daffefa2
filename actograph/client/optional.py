"""Optional packages of the client."""

import importlib
from typing import Any

from actograph.contract.errors import ActographError


class PackageMissing(ActographError):
    """A package that this call needs is not installed."""

    code = "package_missing"
    status = 501


def package(name: str, purpose: str, *, module: str | None = None) -> Any:
    """Import an optional package.

    Args:
        name: its name for pip.
        module: its name in Python, if different.

    Raises:
        PackageMissing: it is not installed; the message names the purpose and the pip command.
    """
    try:
        return importlib.import_module(module or name)
    except ModuleNotFoundError as error:
        raise PackageMissing(f"{purpose} needs {name}: pip install {name}") from error
