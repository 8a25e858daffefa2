"""Sparse autoencoders (SAEs): stored ones, and those that a capture encodes with.

docs/guides/saes.md explains them. An encoding is in float32, whatever the model's dtype.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from actograph.contract import hooks
from actograph.contract.base import HookName, Metadata, ModelName, Name, Resource, ServerPath, Spec, example
from actograph.contract.errors import InvalidRequest
from actograph.contract.models import ModelStructure

#: what an id of an SAE begins with
ID_START = r"sae_[0-9a-f]{1,32}"
_HUB_ID = r"^[A-Za-z0-9_][\w.\-]*/[A-Za-z0-9_][\w.\-]*$"

#: latents of an SAE, at most
MOST_LATENTS = 1 << 26

Architecture = Literal["standard", "topk", "jumprelu", "gated"]
Normalisation = Literal["none", "layer_norm", "constant_norm_rescale"]


def _no_id(name: str) -> str:
    if name.startswith("sae_"):
        raise ValueError(f"{name!r} looks like an id; choose a name that does not begin with sae_")
    if name.endswith((".indices", ".values")):
        raise ValueError(f"{name!r} ends like the tensors of its latents; leave that out")
    return name


def _is_reference(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}", text):
        raise ValueError(f"{text!r} names no SAE. Write its id, the beginning of one, or its name")
    return text


def _is_inside(folder: str) -> str:
    if folder.startswith("/") or ".." in folder.split("/") or "\0" in folder:
        raise ValueError(f"{folder!r} is no folder of a repository; write it from the repository's root on")
    return folder


#: name of a stored SAE
SaeName = Annotated[Name, AfterValidator(_no_id)]
#: id of a stored SAE, the beginning of one, or its name; jobs are stored with the id
SaeRef = Annotated[str, Field(max_length=64), AfterValidator(_is_reference)]


class SaeConfig(Resource):
    """The arithmetic of an SAE, with SAELens' names.

    With x a row, the encoding is act((norm(x) - b_dec) W_enc + b_enc).
    """

    architecture: Architecture
    d_in: int = Field(description="Width of the rows.")
    d_sae: int = Field(description="Number of latents.")
    k: int | None = Field(None, description="Active latents of a `topk` SAE.")
    apply_b_dec_to_input: bool = Field(True, description="False: b_dec is not subtracted from the row.")
    normalize_activations: Normalisation = Field("none", description="Of each row, before the encoding.")
    rescale_acts_by_decoder_norm: bool = Field(
        False, description="Of `topk`: multiplies activations by the norms of the decoder's rows."
    )
    center_rows: bool = Field(False, description="Subtracts each row's mean first, see `NewSae`.")


class NewSae(Spec):
    """An SAE in SAELens' format to store under a name: `cfg.json` and `sae_weights.safetensors`.

    Its files are read once, from a folder of the server or from the Hugging Face Hub.
    """

    model_config = example(
        name="res-8", hub="owner/saes", folder="blocks.8.hook_resid_post", hook="resid_post.8", model="demo"
    )

    name: SaeName = Field(description="Your name for it; its latents are stored as `sae:NAME`.")
    path: ServerPath | None = Field(None, description="Folder of the server, below a data root.")
    hub: str | None = Field(None, pattern=_HUB_ID, description="Repository of the Hub, instead of `path`.")
    folder: Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_is_inside)] | None = Field(
        None, description="Folder of the repository."
    )
    revision: str | None = Field(
        None,
        max_length=255,
        pattern=r"^[A-Za-z0-9][\w./\-]*$",
        description="Branch, tag or commit of the repository.",
    )
    hook: HookName | None = Field(None, description="Hook of its rows; null: the one that its files name.")
    model: ModelName | None = Field(None, description="Only its jobs may use it.")
    center_rows: bool | None = Field(
        None,
        description="Subtract each row's mean before the encoding. True for an SAE that was trained with "
        "TransformerLens' `center_writing_weights` on a model with LayerNorm, such as GPT-2: the rows are "
        "then the same. null: as SAELens' registry says of the repository.",
    )
    metadata: Metadata = Field({})

    @model_validator(mode="after")
    def _has_one_source(self) -> "NewSae":
        if (self.path is None) == (self.hub is None):
            raise ValueError("give exactly one of path and hub")
        if self.hub is None and (self.folder is not None or self.revision is not None):
            raise ValueError("folder and revision belong to hub; of a path write the whole path")
        return self

    @property
    def source(self) -> str:
        """The folder or repository of its files, in one word."""
        if self.path is not None:
            return self.path
        at = f"@{self.revision}" if self.revision else ""
        return f"hub:{self.hub}{at}" + (f"/{self.folder}" if self.folder else "")


class Sae(Resource):
    """A stored SAE."""

    id: str
    object: Literal["sae"] = "sae"
    name: str
    hook: str = Field(description="Hook of the rows that it encodes.")
    model: str | None = None
    config: SaeConfig
    source: str = Field(description="Folder or repository that it was read from.")
    bytes: int = Field(description="Of its weights.")
    sha256: str = Field(description="Digest of `sae_weights.safetensors`.")
    metadata: dict[str, str] = Field({})
    created_at: int


#: points whose rows lose their mean when the weights that write to the residual stream are centred
CENTERED_POINTS = ("embed", "resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
#: what the stored name of latents begins with
PREFIX = "sae:"
#: parts of the latents of a row: numbers of the largest ones, -1 behind the last active one, and activations
PARTS = ("indices", "values")
#: bytes of an index and its activation
PAIR_BYTES = 8
#: latents of a row that are kept, at most
MOST_TOP = 4096


class SaeCapture(Spec):
    """Latents to store: the `top` largest activations of every kept row, by an SAE."""

    sae: SaeRef = Field(description="A stored SAE: its id, the beginning of one, or its name.")
    hook: HookName | None = Field(None, description="Hook whose rows are encoded; null: the SAE's own.")
    top: int = Field(64, ge=1, le=MOST_TOP, description="Most latents of a row to keep, the largest first.")


def latents_name(sae: str) -> str:
    """Name of an SAE's latents beside the hooks of a session, such as `sae:res-8`."""
    return f"{PREFIX}{sae}"


def is_latents(name: str) -> bool:
    """Whether a name is one of latents, and not of a hook."""
    return name.startswith(PREFIX)


def part_names(latents: str) -> tuple[str, str]:
    """Names of the two stored tensors of latents: `sae:res-8.indices` and `sae:res-8.values`."""
    indices, values = (f"{latents}.{part}" for part in PARTS)
    return indices, values


def _check_model(sae: Sae, model: str, param: str) -> None:
    if sae.model is not None and sae.model != model:
        raise InvalidRequest(
            f"SAE {sae.id} ({sae.name}) was stored for the model {sae.model}, not {model}",
            param=f"{param}.sae",
        )


def resolve_sae(
    wanted: SaeCapture, sae: Sae, model: str, structure: ModelStructure | None, param: str
) -> str:
    """The canonical name of the hook whose rows an SAE encodes in a capture.

    Args:
        sae: the stored one that the capture names.
        structure: of the model; None if it is unknown.
        param: field of the capture's entry.

    Raises:
        InvalidRequest: it is for another model, or takes other rows.
        UnknownHook: the model has no such hook.
    """
    _check_model(sae, model, param)
    name = wanted.hook or sae.hook
    if structure is None:
        return name
    said, param = f"SAE {sae.name} takes rows of", f"{param}.hook"
    hook = hooks.of_rows(name, structure, sae.config.d_in, said=said, param=param)
    if sae.config.center_rows and hooks.point_of(hook) not in CENTERED_POINTS:
        raise InvalidRequest(
            f"SAE {sae.name} takes centred rows, which are those of {', '.join(CENTERED_POINTS)}; those of "
            f"{hook} are the same whether or not a model's weights are centred",
            param=param,
        )
    return hook


def check_latent(sae: Sae, latent: int, model: str, param: str) -> None:
    """Raises InvalidRequest if a decoder's row cannot serve as the vector of an intervention.

    Args:
        param: field of the intervention.
    """
    config = sae.config
    _check_model(sae, model, param)
    if latent >= config.d_sae:
        raise InvalidRequest(
            f"SAE {sae.name} has latents 0 to {config.d_sae - 1}; the intervention names {latent}",
            param=f"{param}.latent",
        )
    if config.normalize_activations != "none":
        raise InvalidRequest(
            f"SAE {sae.name} normalises each row ({config.normalize_activations}), so a row of its decoder "
            "is no direction of the hook; give a vector",
            param=f"{param}.sae",
        )


def require_distinct(names: Iterable[str]) -> None:
    """Raises InvalidRequest if a capture names an SAE twice: their latents would have one name."""
    known: set[str] = set()
    for place, name in enumerate(names):
        if name in known:
            raise InvalidRequest(
                f"SAE {name} is named twice; encode the rows of another hook in a job of its own",
                param=f"capture.saes.{place}.sae",
            )
        known.add(name)
