"""Served models, their structure, and model loads."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import Field

from actograph.contract.base import Resource
from actograph.contract.models.model_identity import ModelIdentity
from actograph.contract.resources.base import ErrorRecord
from actograph.contract.resources.jobs import JobStatus


class HookInfo(Resource):
    location: str = Field(description="Module path with .input or .output.")
    width: int
    dtype: str
    aliases: list[str] = Field(
        default_factory=list,
        description="All other names of the hook: module paths with dots and with brackets, flat names, "
        "names of TransformerLens and nnterp, and savepoints.",
    )


class LocationInfo(Resource):
    """The tensor at a module location."""

    width: int
    dtype: str
    tail_only: bool = Field(
        False, description="During generation it has rows only from the last prompt token on, as logits do."
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
    dtype: str
    device: str = Field(description="Device of the inputs and of the chosen tokens.")
    devices: list[str] = Field(default_factory=list, description="Device of each layer.")
    num_parameters: int
    chat_template: bool
    eos_token_ids: list[int]
    hooks: dict[str, HookInfo] = Field(description="All standard hook points of this model.")
    module_locations: list[str] = Field(description="All module locations, in execution order.")
    module_tensors: dict[str, LocationInfo] = Field(
        default_factory=dict, description="Width and dtype of the tensor at each module location."
    )
    unavailable: dict[str, str] = Field(
        default_factory=dict,
        description="Missing point, or missing hook (`router_logits.0`) if only some layers lack it -> "
        "reason.",
    )
    proofs: list[str] = Field(
        default_factory=list,
        description="Equations between hook points that were verified when the model was loaded.",
    )
    ragged_batches: bool = Field(
        True,
        description="True if prompts of different lengths share a batch; false if padding changes the "
        "numbers.",
    )
    revision: str | None = None
    savepoints: dict[str, str] = Field(
        default_factory=dict, description="Names chosen when the model was loaded -> hook point."
    )
    kv_bytes_per_token: int | None = Field(
        None, description="Bytes of one token in the key-value cache; null if unknown."
    )
    identity: ModelIdentity | None = Field(
        None, description="Identity of the model; new jobs are pinned to it."
    )
    mask_bytes_per_pair: int | None = Field(
        None,
        description="Bytes of a padded batch's mask for each pair of a prompt's tokens; null if unknown.",
    )
    scores_bytes_per_pair: int = Field(
        0,
        description="Bytes of attention scores for each pair; 0 if the attention never holds all scores at "
        "once.",
    )
    num_experts: int | None = Field(None, description="Experts in each layer.")
    experts_per_token: int | None = Field(None, description="Experts that the router chooses for each token.")

    @cached_property
    def locations(self) -> Mapping[str, str]:
        """Canonical hook name -> module location, for `hooks.resolve`."""
        return {name: info.location for name, info in self.hooks.items()}

    def tensor_of(self, hook: str) -> LocationInfo | None:
        """The tensor of a hook point or module location. Returns None if it is unknown."""
        info = self.hooks.get(hook)
        found = self.module_tensors.get(hook if info is None else info.location)
        if found is None and info is not None:
            return LocationInfo(width=info.width, dtype=info.dtype, tail_only=hook == "logits")
        return found


class Model(Resource):
    """A served model, in OpenAI's shape."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "actograph"
    status: Literal["loaded", "available"] = "available"


class ModelLoad(Resource):
    """A request to load a model, and its result. It is a job of kind `load`, with the same id."""

    id: str
    object: Literal["model.load"] = "model.load"
    model: str
    status: JobStatus
    created_at: int
    started_at: int | None = None
    finished_at: int | None = None
    worker_id: str | None = Field(None, description="Worker that loads the model, or tried last.")
    options: dict[str, Any]
    error: ErrorRecord | None = Field(
        None, description="Reason of a failed load; the worker keeps its previous model."
    )
