"""Options of a model load, and savepoints: a client's own names of hook points."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ByteSize, Field, field_validator, model_validator

from actograph.contract import hooks
from actograph.contract.base import ModelChoice, Spec, example
from actograph.contract.errors import UnknownHook
from actograph.contract.models import ModelStructure

Attention = Literal["eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention"]
_STRATEGIES = ("auto", "balanced", "balanced_low_0", "sequential")


def _gpu(device: Any) -> Any:
    """Read a device: 0, "0" and "cuda:0" are the same GPU."""
    number = device.removeprefix("cuda:") if isinstance(device, str) else ""
    return int(number) if number.isdecimal() else device


Gpu = Annotated[int, Field(ge=0, le=999, strict=True)]
Device = Annotated[Gpu | Literal["cpu", "disk"], BeforeValidator(_gpu)]
DeviceKey = Annotated[Gpu | Literal["cpu"], BeforeValidator(_gpu)]
#: a size such as `10GiB`, or a number of bytes
Bytes = Annotated[ByteSize, Field(ge=1)]
ModulePath = Annotated[str, Field(max_length=256, pattern=r"^[A-Za-z_]\w*(\.\w+)*$")]
ModuleMap = Annotated[dict[ModulePath, Device], Field(min_length=1, max_length=10_000)]
Placement = Annotated[str, Field(pattern=rf"^({'|'.join(_STRATEGIES)}|cpu|cuda(:\d{{1,3}})?)$")]
DeviceMap = Placement | ModuleMap


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

    loose = ("device_map",)

    revision: str | None = Field(None, max_length=256, pattern=r"^[A-Za-z0-9][\w./\-]*$")
    adapter_revision: str | None = Field(
        None, max_length=256, pattern=r"^[A-Za-z0-9][\w./\-]*$", description="Of the adapter on the Hub."
    )
    dtype: Literal["auto", "float32", "float16", "bfloat16"] | None = None
    device_map: DeviceMap | None = Field(
        None, description="cpu, cuda, cuda:<n>, a strategy such as auto, or module path -> device."
    )
    max_memory: dict[DeviceKey, Bytes] | None = Field(None, max_length=64)
    attn_implementation: Attention | None = None
    savepoints: Annotated[list[Savepoint], BeforeValidator(lambda value: value or [])] = Field(
        [], max_length=1000, description="null is none."
    )

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

    model_id: ModelChoice
    wait: bool = Field(False, description="Answer once the model is loaded, or refused.")

    @property
    def options(self) -> ModelLoadOptions:
        return ModelLoadOptions.model_validate(self.model_dump(exclude={"model_id", "wait"}))


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
