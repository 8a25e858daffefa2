"""Served models: their identity and structure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from actograph.contract.base import Resource
from actograph.contract.errors import InvalidRequest

#: the fields that change the activations, in the order of messages
_DECISIVE = (
    "weights_sha256", "dtype", "attn_implementation", "tokenizer_sha256", "template_sha256", "repeatable",
)  # fmt: skip
#: those that count if they are set, so that the digests of other models stay as they were
_DECISIVE_IF_SET = ("adapter_sha256",)
_SHORT = 12


EngineName = Literal["streaming", "traced"]
EngineChoice = Literal["auto"] | EngineName


class ModelIdentity(Resource):
    """A model as a worker has loaded it.

    `model`, `source`, `revision`, `adapter` and `adapter_revision` are not part of `sha256`: the same weights
    under another path or revision give the same activations. `quantization` is, by config.json's digest.
    """

    model: str = Field(description="Served name of the model.")
    source: str = Field(description="Folder or Hub id.")
    revision: str | None = Field(None, description="Commit of the Hub; null for a folder.")
    weights_sha256: str = Field(description="Digest of weights, config.json and generation_config.json.")
    dtype: str
    attn_implementation: str | None = None
    tokenizer_sha256: str
    template_sha256: str | None = None
    tensor_parallel: int = Field(1, description="Ranks that share each layer; rounding depends on it.")
    repeatable: bool = Field(False, description="Rounding does not depend on what runs beside a sample.")
    quantization: str | None = Field(None, description="Method of a quantised checkpoint, such as torchao.")
    adapter: str | None = Field(None, description="Folder or Hub id of the LoRA that is merged into it.")
    adapter_revision: str | None = Field(None, description="Commit of the Hub; null for a folder.")
    adapter_sha256: str | None = Field(None, description="Digest of the adapter's config and weights.")

    @property
    def sha256(self) -> str:
        """Digest of the decisive fields."""
        names = [*_DECISIVE, *(name for name in _DECISIVE_IF_SET if getattr(self, name) is not None)]
        fields = {name: getattr(self, name) for name in names}
        return sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()

    def differences(self, other: "ModelIdentity") -> str:
        """The decisive fields in which `other` differs, with both values."""
        changed = [
            f"{name} {_short(getattr(other, name))} instead of {_short(getattr(self, name))}"
            for name in (*_DECISIVE, *_DECISIVE_IF_SET)
            if getattr(self, name) != getattr(other, name)
        ]
        return ", ".join(changed)


class PinnedModel(Resource):
    """The model of a job, fixed at its submission or first claim."""

    identity: ModelIdentity
    savepoints: dict[str, str] = Field({}, description="Savepoint -> hook point.")
    engine: EngineName = "streaming"
    engine_reason: str | None = Field(None, description="Why the job is traced.")


def short(identity_sha256: str | None) -> str:
    """The start of an identity's digest, for display."""
    return "unknown" if identity_sha256 is None else identity_sha256[:_SHORT]


def _short(value: Any) -> str:
    text = str(value)
    return text[:_SHORT] if len(text) == 64 else text


class LocationInfo(Resource):
    """The tensor at a module location."""

    width: int
    dtype: str
    tail_only: bool = Field(False, description="Generation computes it only from the last prompt token on.")


class HookInfo(LocationInfo):
    location: str = Field(
        description="Module path with .input or .output, or with .query, .key or .value of its attention."
    )
    aliases: list[str] = Field([])


class LayerHeads(Resource):
    """Attention of one layer: what its pattern is computed from, beside queries and keys."""

    heads: int = Field(description="Heads of `q` and `z`.")
    key_heads: int = Field(description="Heads of `k` and `v`; each serves heads / key_heads heads in turn.")
    width: int = Field(description="Numbers of a head.")
    scale: float = Field(description="Factor of the products of queries and keys.")
    window: int | None = Field(None, description="A token sees itself and the window - 1 tokens before it.")
    softcap: float | None = Field(None, description="Scaled products become softcap * tanh(x / softcap).")
    sinks: list[float] | None = Field(
        None, description="For each head a number beside the products, whose weight nobody gets."
    )
    is_rotated: bool = Field(True, description="`q` and `k` are not what the projections put out.")
    unproved: str | None = Field(
        None, description="Why patterns are not computed from stored rows; null if they equal the model's."
    )


class ModelStructure(Resource):
    """Structure of a loaded model, as its worker discovered and verified it."""

    object: Literal["model.structure"] = "model.structure"
    model: str
    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    context_length: int
    position_switch: int | None = Field(
        None,
        description="Longer texts have other positions (LongRoPE). A prompt of so many tokens or fewer "
        "cannot be continued beyond them. None if all texts have the same positions.",
    )
    dtype: str
    device: str = Field(description="Device of inputs and chosen tokens.")
    devices: list[str] = Field([], description="Device of each layer.")
    num_parameters: int
    chat_template: bool
    tool_calls: bool | None = Field(
        None, description="The chat template offers tools in the form of evaluations; null if unknown."
    )
    eos_token_ids: list[int]
    hooks: dict[str, HookInfo] = Field(description="All standard hook points of this model.")
    module_locations: list[str] = Field(description="All module locations, in execution order.")
    module_tensors: dict[str, LocationInfo] = Field({})
    unavailable: dict[str, str] = Field({}, description="Missing point or hook -> reason.")
    proofs: list[str] = Field([], description="Verified equations between hook points.")
    revision: str | None = None
    savepoints: dict[str, str] = Field({}, description="Savepoint -> hook point.")
    kv_bytes_per_token: int | None = Field(None, description="Keys and values; null if unknown.")
    identity: ModelIdentity | None = Field(None, description="New jobs are pinned to it.")
    engine: EngineName = Field("streaming", description="The engine of jobs that ask for `auto`.")
    engine_reason: str | None = Field(None, description="Why the model is traced.")
    quantization: str | None = Field(None, description="Method of a quantised checkpoint, such as torchao.")
    unverified: str | None = Field(
        None, description="Why no test compares such quantised models with transformers'; null if one does."
    )
    weights_bytes: int | None = Field(None, description="Bytes of quantised weights; null if all are dense.")
    num_experts: int | None = Field(None, description="Experts in each layer.")
    experts_per_token: int | None = Field(None, description="Experts that the router chooses for each token.")
    tensor_parallel: int = Field(1, description="Ranks that share each layer.")
    attention: dict[int, LayerHeads] = Field({}, description="Layer -> its attention, if it has `q`.")

    @cached_property
    def locations(self) -> Mapping[str, str]:
        """Canonical hook name -> module location, for `hooks.resolve`."""
        return {name: info.location for name, info in self.hooks.items()}

    def engine_for(self, choice: EngineChoice) -> tuple[EngineName, str | None]:
        """The engine of a job, and why it is traced; None if it is not.

        Raises:
            InvalidRequest: `streaming` is asked for, and the model needs traces; or `traced` is, and several
                ranks share the model.
        """
        if choice == "traced" and self.tensor_parallel > 1:
            raise InvalidRequest(
                f"{self.model} is shared by {self.tensor_parallel} ranks, which cannot be traced; use engine "
                "auto",
                param="engine",
            )
        if choice == "traced":
            return "traced", "the job asks for it"
        if choice == "streaming" and self.engine == "traced":
            raise InvalidRequest(
                f"{self.model} cannot be streamed: {self.engine_reason}; use engine auto or traced",
                param="engine",
            )
        return self.engine, self.engine_reason

    def read_whole(self) -> "ModelStructure":
        """The structure of passes that only read texts, which compute every tensor of every token."""
        found = {
            name: {key: info.model_copy(update={"tail_only": False}) for key, info in tensors.items()}
            for name, tensors in (("hooks", self.hooks), ("module_tensors", self.module_tensors))
        }
        return self.model_copy(update=found)

    def tensor_of(self, hook: str) -> LocationInfo | None:
        """The tensor of a hook point or module location. Returns None if it is unknown."""
        return self.hooks.get(hook) or self.module_tensors.get(hook)


class Model(Resource):
    """A served model, in OpenAI's shape."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "actograph"
    status: Literal["loaded", "available"] = "available"
    base: str = Field("", description="Folder or Hub id of the weights.")
    adapter: str | None = Field(None, description="Folder or Hub id of the LoRA that is merged into them.")


#: between a base and its adapter: Hub ids have none
_PLUS = "+"


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    #: name in answers and in the index
    name: str
    #: hub id or folder
    source: str
    #: all names that jobs may use
    aliases: frozenset[str]
    #: hub id or folder of a LoRA, which is merged into the weights
    adapter: str | None = None

    @property
    def names_folder(self) -> bool:
        """Whether the source is written as a folder; others are Hub ids, or folders of the same form."""
        return names_folder(self.source)


def names_folder(source: str) -> bool:
    """Whether a source is written as a folder."""
    return source.startswith(("/", "./", "../", "~"))


def with_adapter(base: str, adapter: str) -> str:
    """The name of a base with an adapter, as jobs and settings write it: `BASE+ADAPTER`."""
    return f"{base}{_PLUS}{adapter}"


def parse_served(text: str) -> ServedModel:
    """Read `M` or `NAME=M`, where `M` is a folder, a Hub id, or one with an adapter: `BASE+ADAPTER`.

    A folder is also served under its last part.
    """
    name, separator, source = text.partition("=")
    if not separator:
        name, source = text, text
    base, plus, adapter = source.partition(_PLUS)
    if plus and not (base and adapter):
        raise InvalidRequest(f"model {text!r}: write a base and an adapter as BASE+ADAPTER", param="model")
    if not plus or Path(source).is_dir():
        aliases = {name, source, *_last_part(source)}
        return ServedModel(name=name, source=source, aliases=frozenset(aliases))
    bases = {base, *_last_part(base)}
    aliases = {name, *(with_adapter(one, other) for one in bases for other in (adapter, name))}
    return ServedModel(name=name, source=base, aliases=frozenset(aliases), adapter=adapter)


def _last_part(source: str) -> set[str]:
    return {Path(source).resolve().name} if Path(source).is_dir() else set()


def adapter_of_base(base: str, text: str) -> str:
    """The served model of an adapter, `ADAPTER` or `NAME=ADAPTER`, of a base such as `parse_served` reads.

    Raises:
        InvalidRequest: the folder needs a name.
    """
    served = parse_served(base)
    if served.adapter is not None:
        raise InvalidRequest(f"{base!r} has an adapter already; give --adapter to a model without one")
    if "=" in text and Path(text).is_dir():
        raise InvalidRequest(f"--adapter {text!r}: a folder with = in its path needs a name: NAME={text}")
    name, separator, adapter = text.partition("=")
    if not separator:
        adapter, name = text, with_adapter(served.name, text)
    return f"{name}={with_adapter(served.source, adapter)}"
