"""Objects of a job spec, as mappings or as classes of the contract."""

from collections.abc import Mapping
from typing import Any, Protocol


class Model(Protocol):
    """A class of the contract (pydantic is imported with it, and not before)."""

    def model_dump(self, *, mode: str, exclude_unset: bool) -> dict[str, Any]: ...


#: an object of the job spec: as a mapping, or of its class in `actograph.contract.specs`
Part = Mapping[str, Any] | Model


def plain(value: Any) -> Any:
    """Replace objects of the contract by JSON values, without their defaults."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", exclude_unset=True)
    if isinstance(value, Mapping):
        return {name: plain(part) for name, part in value.items()}
    return [plain(part) for part in value] if isinstance(value, list | tuple) else value
