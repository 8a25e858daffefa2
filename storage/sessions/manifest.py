"""The manifest of a session: its origin, its tensors, and their places in the files."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from actograph.contract.errors import StoreDamaged
from actograph.contract.interventions import AfterReadout, RowSource
from actograph.contract.models import LayerHeads, ModelIdentity
from actograph.contract.resources import SessionFile, TensorInfo
from actograph.contract.row_selection import HeadFeatures, Segment
from actograph.contract.saes import SaeConfig
from actograph.dtypes import DTYPES, row_bytes

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"


class ManifestPart(BaseModel):
    model_config = ConfigDict(frozen=True)


class TensorPart(ManifestPart):
    """Rows [start, stop) of a tensor: the tensor `name` of file `file`."""

    file: str
    name: str
    start: int
    stop: int


class StoredTensor(TensorInfo):
    """One hook's tensor and the places of its rows. `parts` and `nbytes` are set on write."""

    parts: list[TensorPart] = Field(default_factory=list)
    scales: list[TensorPart] = Field(
        default_factory=list, description="Where the scales of F8_E4M3 rows are, [rows, 1]; else empty."
    )

    @property
    def files(self) -> list[str]:
        return [part.file for part in self.parts]

    def placed(self, parts: list[TensorPart], scales: list[TensorPart]) -> "StoredTensor":
        """The same tensor with the places of its rows and of their scales."""
        nbytes = self.shape[0] * row_bytes(DTYPES[self.dtype], self.shape[1])
        return self.model_copy(update={"parts": parts, "scales": scales, "nbytes": nbytes})


class Turn(ManifestPart):
    """One turn of the model: tokens [start, stop) of `token_ids`, beginning with `prompt_tokens` of prompt.

    Before them the model also read the first `context` tokens of the previous turn (its context, prompt and
    answer), which are not stored again.
    """

    role: str
    start: int
    stop: int
    prompt_tokens: int
    context: int | None = Field(None, description="null for the first turn.")


class AppliedSae(ManifestPart):
    """An SAE whose latents are stored."""

    id: str
    name: str
    hook: str = Field(description="Canonical name of the hook whose rows it encoded.")
    top: int = Field(description="Latents of a row that are stored.")
    config: SaeConfig
    sha256: str = Field(description="Of its weights.")
    source: str


class AppliedReadout(ManifestPart):
    """A readout whose values are stored."""

    vector_id: str
    vector: str = Field(description="Name of its vector.")
    hook: str = Field(description="Canonical name of the hook whose rows it read.")
    bias: float = Field(description="Added to each value.")
    vector_sha256: str = Field(description="Of the numbers as little-endian float32.")


class AppliedIntervention(ManifestPart):
    """One intervention as it was applied. A sha256 identifies its vector."""

    hook: str = Field(description="Canonical name.")
    op: str
    coefficient: float
    scale_by: str | None = None
    positions: Any
    vector_id: str | None = None
    source: RowSource | None = Field(None, description="The row of a session that was its vector.")
    sae: str | None = Field(None, description="Id of the SAE of whose decoder a row was its vector.")
    latent: int | None = Field(None, description="The latent of that row.")
    features: HeadFeatures | None = Field(None, description="The heads that were changed; null: all columns.")
    vector_sha256: str | None = Field(None, description="Of the numbers as little-endian float32.")
    after: AfterReadout | None = Field(None, description="The readout that it waited for.")


class SessionManifest(ManifestPart):
    """Description of a session for readers.

    For P prompt and G generated tokens the model ran P + G - 1 tokens, or P if it generated nothing
    (prefill). Row t of a full tensor is the activation of input token t.
    """

    format_version: int = FORMAT_VERSION
    session_id: str = Field(pattern=r"^ses_[0-9a-f]{32}$")
    source_session: str | None = Field(None, description="The session that it replays.")
    job_id: str
    sample_id: str
    sample_index: int
    condition: str | None = None
    epoch: int = 0
    model: str
    revision: str | None = None
    tokenizer_sha256: str | None = None
    template_sha256: str | None = None
    identity_sha256: str | None = Field(None, description="Digest of the identity of the model.")
    identity: ModelIdentity | None = Field(None, description="Everything that the numbers depend on.")
    engine: str | None = None
    engine_reason: str | None = Field(None, description="Why it was traced.")
    resolved_hooks: dict[str, str] = Field(
        default_factory=dict, description="Each name in `capture.hooks` -> hook point or module location."
    )
    locations: dict[str, str] = Field(
        default_factory=dict, description="Each stored hook -> the place in the model where it was read."
    )
    attention: dict[int, LayerHeads] = Field(
        default_factory=dict, description="Layer with a stored `q`, `k`, `v` or `z` -> its heads."
    )
    saes: dict[str, AppliedSae] = Field(default_factory=dict, description="Name of latents -> their SAE.")
    readouts: dict[str, AppliedReadout] = Field(
        default_factory=dict, description="Name of a readout's values -> its vector."
    )
    capture: dict[str, Any] = Field(description="The capture spec as the client sent it.")
    capture_sha256: str
    dtype: str = Field(description="Requested dtype; each tensor names its own.")
    prompt_tokens: int = Field(ge=0, description="0 for the results of an analysis, which has no tensors.")
    generated_tokens: int = Field(ge=0)
    truncated_from: int | None = Field(
        None, description="Tokens that the text had before it was cut to the model's context; null: not cut."
    )
    turns: list[Turn] = Field(default_factory=list)
    segments: list[Segment] = Field(default_factory=list)
    token_texts: list[str] = Field(
        default_factory=list, description="Text of each token; a character of several tokens is in the last."
    )
    sampling: dict[str, Any] = Field(default_factory=dict)
    interventions: list[AppliedIntervention] = Field(
        default_factory=list, description="In the order in which they were applied."
    )
    seed: int
    finish_reason: Literal["stop", "length", "readout"] | None = None
    versions: dict[str, str] = Field(default_factory=dict, description="Library -> version.")
    created_at: int = Field(description="Unix seconds, UTC.")
    tensors: dict[str, StoredTensor]
    token_ids: TensorPart | None = Field(None, description="Where the P + G token ids are; set on write.")
    row_positions: TensorPart | None = Field(
        None, description="Where the tokens of chosen rows are; null where all rows are consecutive."
    )
    files: list[SessionFile] = Field(default_factory=list, description="All but the manifest; set on write.")

    @property
    def num_tokens(self) -> int:
        return self.prompt_tokens + self.generated_tokens

    def encode(self) -> str:
        return self.model_dump_json(indent=1) + "\n"

    @classmethod
    def decode(cls, data: bytes) -> "SessionManifest":
        """Parse a manifest. Raises StoreDamaged if this version cannot read it."""
        try:
            manifest = cls.model_validate_json(data)
        except ValidationError as error:
            raise StoreDamaged(f"{MANIFEST_NAME} cannot be read: {error}") from error
        if manifest.format_version > FORMAT_VERSION:
            raise StoreDamaged(
                f"the session has format version {manifest.format_version}, this program reads up to "
                f"{FORMAT_VERSION}: update it"
            )
        return manifest
