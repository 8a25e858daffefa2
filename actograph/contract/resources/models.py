"""Served models, their structure, and loads of them."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

from pydantic import Field

from actograph.contract.models.model_identity import ModelIdentity
from actograph.contract.resources.base import ErrorRecord, Resource
from actograph.contract.resources.jobs import JobStatus


class HookInfo(Resource):
    location: str = Field(description="Module path with .input or .output.")
    width: int
    dtype: str
    aliases: list[str] = Field(
        default_factory=list,
        description="Every other name of it in this model: module paths with dots and with brackets, flat "
        "names, TransformerLens's, nnterp's, and savepoints.",
    )


class LocationInfo(Resource):
    """The tensor that passes one module location."""

    width: int
    dtype: str
    tail_only: bool = Field(
        False, description="While generating, it has rows from the last prompt token on, as logits have."
    )


class ModelStructure(Resource):
    """What a loaded model looks like, as its worker found and proved it."""

    object: Literal["model.structure"] = "model.structure"
    model: str
    architecture: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    context_length: int
    dtype: str
    device: str = Field(description="Where inputs go in and tokens come out.")
    devices: list[str] = Field(default_factory=list, description="Where each layer computes.")
    num_parameters: int
    chat_template: bool
    eos_token_ids: list[int]
    hooks: dict[str, HookInfo] = Field(description="Every standard hook point of this model.")
    module_locations: list[str] = Field(description="Every module location, in execution order.")
    module_tensors: dict[str, LocationInfo] = Field(
        default_factory=dict, description="Width and dtype of the tensor at every module location."
    )
    unavailable: dict[str, str] = Field(
        default_factory=dict,
        description="Point, or hook (`router_logits.0`) where only some layers lack it -> why it is missing.",
    )
    proofs: list[str] = Field(default_factory=list, description="Identities checked when it was loaded.")
    ragged_batches: bool = Field(
        True,
        description="Prompts of different lengths share a batch; false where padding changes the numbers.",
    )
    revision: str | None = None
    savepoints: dict[str, str] = Field(
        default_factory=dict, description="Names given when it was loaded -> hook point."
    )
    kv_bytes_per_token: int | None = Field(
        None, description="Bytes that one token takes in the key-value cache; null where unknown."
    )
    identity: ModelIdentity | None = Field(
        None, description="Everything that its numbers depend on; new jobs are pinned to it."
    )
    mask_bytes_per_pair: int | None = Field(
        None,
        description="Bytes of a padded batch's mask for each pair of a prompt's tokens; null where unknown.",
    )
    scores_bytes_per_pair: int = Field(
        0, description="The same in attention scores; 0 if the attention never holds all scores at once."
    )
    num_experts: int | None = Field(None, description="Experts of a layer that the router chooses from.")
    experts_per_token: int | None = Field(None, description="Experts that the router chooses for a token.")

    @cached_property
    def locations(self) -> Mapping[str, str]:
        """Canonical hook name -> module location, as `hooks.resolve` wants it."""
        return {name: info.location for name, info in self.hooks.items()}

    def tensor_of(self, hook: str) -> LocationInfo | None:
        """The tensor of a hook point or module location; None where this structure does not tell.

        A structure that was stored before module locations had their tensors tells of hook points only.
        """
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
    """A request to load a model, and what became of it. It is a job of kind `load`, with the same id."""

    id: str
    object: Literal["model.load"] = "model.load"
    model: str
    status: JobStatus
    created_at: int
    started_at: int | None = None
    finished_at: int | None = None
    worker_id: str | None = Field(None, description="Who loads or last tried to load it.")
    options: dict[str, Any]
    error: ErrorRecord | None = Field(None, description="Why it was refused; the worker went on as before.")
