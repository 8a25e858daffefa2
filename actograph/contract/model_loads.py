"""What a client says of how a served model shall be loaded, and under which names of its own its hooks go."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from actograph.contract import hooks
from actograph.contract.errors import UnknownHook
from actograph.contract.resources import ModelStructure
from actograph.contract.specs import Spec

MAX_SAVEPOINTS = 1000

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?([A-Za-z]{0,3})")
_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?")

Attention = Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"]


def _device_key(value: Any) -> Any:
    """JSON keeps no integer keys: "0" is the GPU with this number."""
    return int(value) if isinstance(value, str) and value.isascii() and value.isdecimal() else value


def _bytes(value: Any) -> Any:
    """`"10GiB"` as transformers takes it, or a number of bytes."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None or match[2].upper() not in _UNITS:
        raise ValueError("give bytes, or a size such as 10GiB or 500MB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


DeviceKey = Annotated[Annotated[int, Field(ge=0, le=999)] | Literal["cpu"], BeforeValidator(_device_key)]
Bytes = Annotated[int, Field(ge=1, le=1 << 62), BeforeValidator(_bytes)]


class Savepoint(Spec):
    """A name of the client's own for a hook point of this model."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.\-]{0,63}$")
    selector: str = Field(
        max_length=256, pattern=r"^[\w.\[\]\-]+$", description="A hook point, or any accepted alias."
    )

    @field_validator("name")
    @classmethod
    def _is_new(cls, value: str) -> str:
        if hooks.canonical(value) is not None or value.endswith((".input", ".output")):
            raise ValueError(f"{value} is the name of a hook point already")
        return value


class ModelLoadOptions(Spec):
    """How a model is loaded; null leaves it to the worker's settings."""

    revision: str | None = Field(
        None, max_length=256, pattern=r"^[A-Za-z0-9][\w./\-]*$", description="Hub revision."
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] | None = None
    device_map: str | None = Field(
        None, description="auto, cpu, cuda or cuda:<n>; {'': device} says the same. One device holds it all."
    )
    max_memory: dict[DeviceKey, Bytes] | None = Field(
        None, max_length=64, description="GPU number or cpu -> bytes that the weights may take there."
    )
    attn_implementation: Attention | None = None
    savepoints: list[Savepoint] = Field(default_factory=list, max_length=MAX_SAVEPOINTS)

    @field_validator("device_map", mode="before")
    @classmethod
    def _one_device(cls, value: Any) -> Any:
        if isinstance(value, dict):
            if set(value) != {""}:
                raise ValueError("a model is held by one device here; name it, such as cuda:0")
            value = value[""]
        if isinstance(value, int) and not isinstance(value, bool):
            value = f"cuda:{value}"
        if isinstance(value, str) and not _DEVICE.fullmatch(value):
            raise ValueError("give auto, cpu, cuda or cuda:<n>; a model is not split over devices here")
        return value

    @model_validator(mode="after")
    def _distinct(self) -> "ModelLoadOptions":
        names = [savepoint.name for savepoint in self.savepoints]
        if len(set(names)) != len(names):
            raise ValueError("savepoint names must differ")
        return self


class ModelLoadRequest(ModelLoadOptions):
    """Load a served model, in place of the one that a worker holds."""

    model_id: str = Field(min_length=1, max_length=1024, description="Any name under which it is served.")

    @property
    def options(self) -> ModelLoadOptions:
        return ModelLoadOptions.model_validate(self.model_dump(exclude={"model_id"}))


def resolve_savepoints(options: ModelLoadOptions, structure: ModelStructure) -> dict[str, str]:
    """Savepoint name -> canonical hook of this model.

    Raises:
        UnknownHook: a selector that the model does not have; the message names the nearest ones.
    """
    plain = structure.model_copy(update={"savepoints": {}})
    found = {}
    for place, savepoint in enumerate(options.savepoints):
        try:
            found[savepoint.name] = hooks.resolve(savepoint.selector, plain)
        except UnknownHook as error:
            param = f"savepoints.{place}.selector"
            raise UnknownHook(f"savepoint {savepoint.name}: {error.message}", param=param) from None
    return found


def with_savepoints(structure: ModelStructure, savepoints: Mapping[str, str]) -> ModelStructure:
    """The structure with these savepoints, and with every name of each hook beside it."""
    found = structure.model_copy(update={"savepoints": dict(savepoints)})
    named = {
        hook: info.model_copy(update={"aliases": hooks.names_in(found, hook)})
        for hook, info in found.hooks.items()
    }
    return found.model_copy(update={"hooks": named})
