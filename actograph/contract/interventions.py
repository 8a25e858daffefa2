"""Interventions: changes of a model's activations during the forward pass, and stored vectors.

docs/guides/steering.md explains them. Arithmetic is in float32, whatever the model's dtype.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from hashlib import sha256
from math import hypot
from typing import Annotated, Any, Literal, Protocol

from pydantic import AfterValidator, ConfigDict, Field, model_validator
from typing_extensions import override

from actograph.contract import hooks
from actograph.contract.base import HookName, Metadata, ModelName, Name, Resource, SessionId, Spec, example
from actograph.contract.errors import InvalidRequest, UnknownHook
from actograph.contract.models import ModelStructure
from actograph.contract.row_selection import HeadFeatures, Positions, known_in_the_pass
from actograph.contract.saes import MOST_LATENTS, SaeRef
from actograph.tables import describe

MAX_WIDTH = 1_000_000
MAX_INTERVENTIONS = 64
FLOAT32_MAX = 3.4028234663852886e38

Op = Literal["add", "scale", "zero", "replace", "project_out"]
#: operations as the engine makes them: `add` is `add_row_norm` if it is scaled by the norms of the rows
EditOp = Literal[Op, "add_row_norm"]
#: operations that need a vector; the others must have none
VECTOR_OPS = ("add", "replace", "project_out")

#: a location that is one element of a module's tuple
_PART = re.compile(r"\.output\.\d+$")

Number = Annotated[float, Field(ge=-FLOAT32_MAX, le=FLOAT32_MAX, allow_inf_nan=False)]
Vector = Annotated[list[Number], Field(min_length=1, max_length=MAX_WIDTH, fail_fast=True)]
#: what an id of a vector begins with
ID_START = r"vec_[0-9a-f]{1,32}"
_NAMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}(@[^@]{1,256})?")


def _no_id(name: str) -> str:
    if name.startswith("vec_"):
        raise ValueError(f"{name!r} looks like an id; choose a name that does not begin with vec_")
    return name


def _is_reference(text: str) -> str:
    if not _NAMED.fullmatch(text):
        raise ValueError(
            f"{text!r} names no vector. Write its id, the beginning of one, its name, or NAME@HOOK"
        )
    return text


#: name of a stored vector
VectorName = Annotated[Name, AfterValidator(_no_id)]
#: id of a stored vector, the beginning of one, NAME or NAME@HOOK; jobs are stored with the id
VectorRef = Annotated[str, Field(max_length=400), AfterValidator(_is_reference)]

#: points that can only be read: the model does not use the tensor that they show
READ_ONLY_POINTS = ("router_logits", "expert_indices", "expert_weights")


def _known_in_the_pass(value: Any) -> Any:
    """Refuse `last`: during the pass it is not known which token will be the last."""
    if value == "last":
        raise ValueError(
            "'last' is known only when the generation has ended, too late to change it. Use last_prompt for "
            "the prompt's last token, or generated for all tokens after it"
        )
    return known_in_the_pass(value)


class RowSource(Spec):
    """A stored row of a session, as the vector of an intervention."""

    session: SessionId = Field(description="Id of a session, or its unique beginning.")
    hook: HookName | None = Field(None, description="Stored hook; null: that of the intervention.")
    row: int = Field(
        ge=-10_000_000,
        le=1 << 31,
        strict=True,
        description="Its token, counted from the first of the prompt; -1 is the last token of the prompt.",
    )


class AfterReadout(Spec):
    """When an intervention begins: after the first generated token at which a readout crosses a number."""

    readout: Name = Field(description="Name of a readout of the capture.")
    above: Number | None = Field(None, description="It begins after a larger value.")
    below: Number | None = Field(None, description="It begins after a smaller value.")

    @model_validator(mode="after")
    def _has_a_number(self) -> "AfterReadout":
        if self.above is None and self.below is None:
            raise ValueError("give above, below or both: the number that the readout must cross")
        return self


class Intervention(Spec):
    """A change of a hook's tensor: c is the coefficient, x a token's row and v the vector.

    add: x + c v; scale: c x; zero: 0; replace: c v; project_out: x - c (x.u) u with u = v / |v|.
    add with scale_by row_norm: x + c |x| u.
    Tokens are counted from the first token of the prompt, without padding. The model computes a token's
    row when the token is its input.
    """

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True, serialize_by_alias=True)

    hook: HookName = Field(description="Hook name or alias.")
    op: Op = Field(description="Change of each row.")
    vector: Vector | None = Field(None, description="As long as the hook is wide.")
    vector_id: VectorRef | None = Field(
        None,
        description="A stored vector, instead of `vector`: its id, the beginning of one, its name (the "
        "vector of this hook), or `NAME@HOOK`.",
    )
    source: RowSource | None = Field(
        None, alias="from", description="A stored row of a session, instead of `vector`: patching."
    )
    sae: SaeRef | None = Field(
        None, description="A stored SAE, instead of `vector`: the row of its decoder of `latent`."
    )
    latent: int | None = Field(
        None, ge=0, lt=MOST_LATENTS, strict=True, description="Number of a latent of `sae`."
    )
    coefficient: Number = Field(1.0, description="c in these formulas.")
    features: HeadFeatures | None = Field(
        None,
        description="Heads to change, of `q`, `k`, `v` or `z`: x and v are then the columns of these heads, "
        "side by side. The vector is as long as they are, or as the hook is wide; null changes all columns.",
    )
    scale_by: Literal["row_norm"] | None = Field(
        None,
        description="Of `add`: `row_norm` adds c times the norm of the row itself along the vector, whatever "
        "the vector's length is. With `features`, of the chosen heads alone.",
    )
    positions: Annotated[Positions, AfterValidator(_known_in_the_pass)] = Field(
        "all", description="Tokens to change, as in a capture spec; none counted from the end."
    )

    after: AfterReadout | None = Field(
        None, description="Begins with the token after the one at which a readout crossed; null: at once."
    )

    @model_validator(mode="after")
    def _fits_the_op(self) -> "Intervention":
        given = sum(one is not None for one in (self.vector, self.vector_id, self.source, self.sae))
        if self.op in VECTOR_OPS and given != 1:
            raise ValueError(f"{self.op} needs exactly one of vector, vector_id, from and sae")
        if (self.sae is None) != (self.latent is None):
            raise ValueError("sae and latent belong together: the SAE, and the number of one of its latents")
        if self.op not in VECTOR_OPS and given:
            raise ValueError(f"{self.op} takes no vector")
        if self.op == "zero" and self.coefficient != 1.0:
            raise ValueError("zero takes no coefficient; use scale to keep a part")
        if self.op == "scale" and "coefficient" not in self.model_fields_set:
            raise ValueError("scale needs a coefficient")
        if self.scale_by and self.op != "add":
            raise ValueError(f"{self.op} takes no scale_by; it is a field of add")
        if self.vector is not None:
            require_direction(self, self.vector)
        return self

    @property
    def edit_op(self) -> EditOp:
        """The operation as the engine makes it."""
        return "add_row_norm" if self.scale_by else self.op


InterventionList = Annotated[list[Intervention], Field(max_length=MAX_INTERVENTIONS)]


class NewVector(Spec):
    """A vector to store under a name, for use in interventions."""

    model_config = example(name="career", hook="resid_post.2", vector=[0.1, -0.2, 0.3], model="demo")

    name: VectorName = Field(description="Your name for it, one for the vectors of several hooks.")
    hook: HookName = Field(description="Hook whose rows it is from or for.")
    vector: Vector = Field(description="As long as the hook is wide.")
    model: ModelName | None = Field(None, description="Only its jobs may use it.")
    metadata: Metadata = Field({})


class VectorInfo(Resource):
    """A stored vector without its numbers."""

    id: str
    object: Literal["vector"] = "vector"
    name: str
    hook: str
    width: int
    model: str | None = None
    sha256: str = Field(description="Digest of the numbers as little-endian float32.")
    metadata: dict[str, str] = Field({})
    created_at: int


class StoredVector(VectorInfo):
    """A stored vector with its numbers, rounded to float32."""

    vector: list[float]

    @override
    def __str__(self) -> str:
        return describe(self, ["vector"], norm=hypot(*self.vector))


def float32_bytes(vector: Sequence[float]) -> bytes:
    """The numbers as little-endian float32, as they are stored, hashed and used."""
    return struct.pack(f"<{len(vector)}f", *vector)


def vector_sha256(vector: Sequence[float]) -> str:
    """sha256 (hex) of `float32_bytes`."""
    return sha256(float32_bytes(vector)).hexdigest()


def require_direction(intervention: Intervention, vector: Sequence[float]) -> None:
    """Raises ValueError if the operation needs a direction, and the vector is zero in float32."""
    if intervention.edit_op not in ("project_out", "add_row_norm"):
        return
    if not any(struct.unpack(f"<{len(vector)}f", float32_bytes(vector))):
        name = "scale_by row_norm" if intervention.scale_by else intervention.op
        raise ValueError(f"{name} needs a vector that is not zero")


def resolve_hook(name: str, structure: ModelStructure, param: str) -> str:
    """The canonical name of a hook that interventions may change.

    Raises:
        UnknownHook: the model has no such hook point, or it can only be read.
    """
    try:
        hook = hooks.resolve(name, structure)
    except UnknownHook as error:
        raise UnknownHook(error.message, param=param) from None
    point = hooks.point_of(hook)
    if point in READ_ONLY_POINTS or _PART.search(hook):
        raise UnknownHook(
            f"{name}: {point} can be captured but not changed: the module has already used it",
            param=param,
        )
    return hook


def check_width(hook: str, length: int, width: int, param: str, columns: Sequence[int] | None = None) -> None:
    """Raises InvalidRequest if a vector does not fit its hook, nor the columns of its heads."""
    if length == width or (columns is not None and length == len(columns)):
        return
    heads = "" if columns is None else f", and the chosen heads {len(columns)}"
    raise InvalidRequest(f"the vector has {length} numbers, {hook} is {width} wide{heads}", param=param)


def of_columns(
    vector: Sequence[float], columns: Sequence[int] | None, intervention: Intervention, param: str
) -> Sequence[float]:
    """The numbers of a vector that belong to the chosen heads; all of one that has no others.

    Raises:
        InvalidRequest: the operation needs a direction, and has none there.
    """
    is_whole = columns is None or len(vector) == len(columns)
    chosen = vector if columns is None or is_whole else [vector[column] for column in columns]
    try:
        require_direction(intervention, chosen)
    except ValueError as error:
        where = "" if is_whole else " in the chosen heads"
        raise InvalidRequest(f"{error}{where}", param=param) from None
    return chosen


class HasInterventions(Protocol):
    @property
    def interventions(self) -> list[Intervention]: ...


def each(
    job: Sequence[Intervention], conditions: Sequence[HasInterventions]
) -> Iterator[tuple[str, Intervention]]:
    """All interventions of a job and its conditions, each with the name of its field."""
    for i, intervention in enumerate(job):
        yield f"interventions.{i}", intervention
    for place, condition in enumerate(conditions):
        for i, intervention in enumerate(condition.interventions):
            yield f"conditions.{place}.interventions.{i}", intervention


def check_stored(intervention: Intervention, stored: StoredVector, model: str, param: str) -> None:
    """Raises InvalidRequest if the intervention cannot use the stored vector with this model."""
    if stored.model is not None and stored.model != model:
        raise InvalidRequest(
            f"vector {stored.id} ({stored.name}) was stored for the model {stored.model}, not {model}",
            param=param,
        )
    try:
        require_direction(intervention, stored.vector)
    except ValueError as error:
        raise InvalidRequest(f"{error}; vector {stored.id} ({stored.name}) is", param=param) from None
