"""Options of a model load, and savepoints: a client's own names of hook points."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from actograph.contract import hooks
from actograph.contract.base import ModelName, Spec, example
from actograph.contract.errors import UnknownHook
from actograph.contract.models import ModelStructure

MAX_SAVEPOINTS = 1000

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?([A-Za-z]{0,3})")
_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")
_STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")
_MODULE_PATH = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
MAX_MODULES = 10_000

Attention = Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"]


def _device_key(value: Any) -> Any:
    """Read a device key: JSON has no integer keys, so "0" is GPU 0."""
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
Device = int | str
DeviceMap = str | dict[str, Device]


def _module_path(path: Any) -> str:
    if not isinstance(path, str) or len(path) > 256 or not _MODULE_PATH.fullmatch(path):
        raise ValueError("a device map's keys are module paths, such as model.layers.0")
    return path


def _device(device: Any) -> Device:
    """Read a device: 0, "0" and "cuda:0" are the same GPU."""
    found = _device_key(device)
    if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= 999:
        return found
    if isinstance(found, str) and (found == "disk" or _DEVICE.fullmatch(found)):
        if found.startswith("cuda"):
            return int(found.partition(":")[2] or 0)
        return found
    raise ValueError("a module's device is a GPU number, cuda:<n>, cpu or disk")


class Savepoint(Spec):
    """A client's own name for a hook point of this model."""

    name: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_.\-]{0,63}$")
    selector: str = Field(max_length=256, pattern=r"^[\w.\[\]\-]+$", description="Hook name or alias.")

    @field_validator("name")
    @classmethod
    def _is_new(cls, value: str) -> str:
        if hooks.canonical(value) is not None or value.endswith((".input", ".output")):
            raise ValueError(f"{value} is already the name of a hook point")
        return value


class ModelLoadOptions(Spec):
    """Options of a model load; null uses the worker's settings."""

    revision: str | None = Field(None, max_length=256, pattern=r"^[A-Za-z0-9][\w./\-]*$")
    dtype: Literal["auto", "float32", "float16", "bfloat16"] | None = None
    device_map: DeviceMap | None = Field(
        None, description="A device, a strategy such as auto, or module path -> device."
    )
    max_memory: dict[DeviceKey, Bytes] | None = Field(None, max_length=64)
    attn_implementation: Attention | None = None
    savepoints: list[Savepoint] = Field(default_factory=list, max_length=MAX_SAVEPOINTS)

    @field_validator("device_map", mode="before")
    @classmethod
    def _placed(cls, value: Any) -> Any:
        if isinstance(value, dict) and set(value) == {""}:
            value = value[""]  # all on one device, or a strategy
        if isinstance(value, dict):
            if not 0 < len(value) <= MAX_MODULES:
                raise ValueError(f"give 1 to {MAX_MODULES} modules")
            return {_module_path(path): _device(device) for path, device in value.items()}
        if isinstance(value, int) and not isinstance(value, bool):
            value = f"cuda:{value}"
        if isinstance(value, str) and value not in _STRATEGIES and not _DEVICE.fullmatch(value):
            raise ValueError(f"give cpu, cuda, cuda:<n>, {', '.join(_STRATEGIES)}, or module path -> device")
        return value

    @property
    def is_spread(self) -> bool:
        """True if `device_map` spreads the model over devices."""
        return isinstance(self.device_map, dict) or self.device_map in _STRATEGIES

    @model_validator(mode="after")
    def _distinct(self) -> "ModelLoadOptions":
        names = [savepoint.name for savepoint in self.savepoints]
        if len(set(names)) != len(names):
            raise ValueError("savepoint names must differ")
        return self


class ModelLoadRequest(ModelLoadOptions):
    """A request to load a served model, in place of a worker's current model."""

    model_config = example(
        model_id="Qwen/Qwen3-0.6B",
        dtype="bfloat16",
        savepoints=[{"name": "probe_layer", "selector": "model.layers[12].output"}],
    )

    model_id: ModelName

    @property
    def options(self) -> ModelLoadOptions:
        return ModelLoadOptions.model_validate(self.model_dump(exclude={"model_id"}))


def resolve_savepoints(options: ModelLoadOptions, structure: ModelStructure) -> dict[str, str]:
    """Savepoint name -> canonical hook of this model.

    Raises:
        UnknownHook: the model lacks a selector; the message suggests similar names.
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
    """The structure with these savepoints, and with all names of each hook."""
    found = structure.model_copy(update={"savepoints": dict(savepoints)})
    named = {
        hook: info.model_copy(update={"aliases": hooks.names_in(found, hook)})
        for hook, info in found.hooks.items()
    }
    return found.model_copy(update={"hooks": named})
