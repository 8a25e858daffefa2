"""Readouts: the inner product of a hook's rows with a stored vector, one number for each token.

docs/guides/readouts.md explains them. Products and sums are in float64, whatever the model's dtype, and the
stored number is a float32: so it depends on the row alone, and not on other rows of the pass.
"""

from collections.abc import Iterable, Sequence

from pydantic import Field, model_validator

from actograph.contract import hooks
from actograph.contract.base import HookName, Name, Resource, Spec
from actograph.contract.errors import InvalidRequest
from actograph.contract.interventions import Number, StoredVector, VectorRef
from actograph.contract.models import ModelStructure
from actograph.contract.row_selection import Positions, held_back

#: what the stored name of a readout begins with
PREFIX = "readout:"
#: bytes of one value
VALUE_BYTES = 4
#: readouts of a capture, at most
MOST = 64
#: field of a vector's metadata that holds the bias of its readouts; a saved probe has it
BIAS = "bias"


class ReadoutCapture(Spec):
    """One number for each kept token: the inner product of its row with a stored vector, plus a bias."""

    vector: VectorRef = Field(
        description="A stored vector: its id, the beginning of one, its name, or `NAME@HOOK`."
    )
    hook: HookName | None = Field(None, description="Hook whose rows are read; null: the vector's own.")
    name: Name | None = Field(
        None, description="Its values are stored as `readout:NAME`; null: the vector's name."
    )
    bias: Number | None = Field(
        None, description="Added to each value; null: the `bias` of the vector's metadata, or 0."
    )
    stop_above: Number | None = Field(
        None, description="Ends the sample after the first generated token with a larger value."
    )
    stop_below: Number | None = Field(
        None, description="Ends the sample after the first generated token with a smaller value."
    )

    @property
    def stops(self) -> bool:
        """Whether its values may end a sample."""
        return self.stop_above is not None or self.stop_below is not None

    def crossed(self, value: float) -> bool:
        """Whether a value ends a sample."""
        above, below = self.stop_above, self.stop_below
        return (above is not None and value > above) or (below is not None and value < below)


class ReadoutMetric(Spec):
    """The value of a readout at one token of a prompt, as the metric of a patch job."""

    readout: ReadoutCapture = Field(description="As in a capture, but it ends nothing.")
    position: int = Field(
        -1, ge=-1_000_000, le=1_000_000, description="Token of the prompt; -1 is the last one."
    )

    @model_validator(mode="after")
    def _ends_nothing(self) -> "ReadoutMetric":
        if self.readout.stops:
            raise ValueError("nothing is generated that stop_above or stop_below could end; leave them out")
        return self


class ReadoutValues(Resource):
    """The values of a readout in one sample, in short.

    They are those of the generated tokens that have a stored value, or of all tokens if none has.
    """

    tokens: int = Field(description="Number of values.")
    generated: bool = Field(description="Whether they are those of generated tokens.")
    max: float
    min: float
    mean: float
    last: float
    max_token: int = Field(description="The first token with the largest value.")
    stopped: bool = Field(False, description="Whether the last value has ended the sample.")


class TokenReadouts(Resource):
    """The values of a sample's readouts at one generated token."""

    token: int = Field(description="Its number, from the first token of the prompt on.")
    values: dict[str, float] = Field(description="Value by readout.")


class ReadoutTotals(Resource):
    """A readout in the samples with one verdict."""

    samples: int = Field(0, description="Completed samples with values.")
    fired: int = Field(0, description="Those whose largest value is above `fires_above`.")
    max: float | None = Field(None, description="Mean of the samples' largest values.")
    mean: float | None = Field(None, description="Mean of the samples' means.")
    last: float | None = Field(None, description="Mean of the samples' last values.")


class ReadoutResults(Resource):
    """A readout in the samples of one condition, by their verdicts."""

    fires_above: float
    right: ReadoutTotals = ReadoutTotals()
    wrong: ReadoutTotals = ReadoutTotals()
    unscored: ReadoutTotals = ReadoutTotals()


def check_stops(wanted: Sequence[ReadoutCapture], positions: Positions, *, generates: bool) -> None:
    """Raises ValueError if a readout cannot end a sample; the arguments are those of `check_limits`."""
    if any(one.stops for one in wanted):
        check_limits(positions, generates=generates)


def check_limits(positions: Positions, *, generates: bool) -> None:
    """Raises ValueError if readouts have no values in time to end a sample or begin an intervention.

    Args:
        positions: of the capture.
        generates: whether tokens are generated.
    """
    limits = "stop_above and stop_below of readouts, and interventions after a readout,"
    if not generates:
        raise ValueError(f"{limits} wait for a generated token, and this job generates none; leave them out")
    if positions in ("prompt", "last", "last_prompt") or held_back(positions) is not None:
        raise ValueError(
            f"{limits} need values of generated tokens while they come, which positions {positions} do not "
            "keep; choose all or generated"
        )


def check_turns(*, uses_tools: bool) -> None:
    """Raises ValueError if samples have several turns, in which readouts cannot end or begin anything."""
    if uses_tools:
        raise ValueError(
            "stop_above and stop_below of readouts, and interventions after a readout, do not go with tools: "
            "the model reads the last token of a turn with the results, when it is too late"
        )


def stored_name(name: str) -> str:
    """Name of a readout's values beside the hooks of a session, such as `readout:career`."""
    return f"{PREFIX}{name}"


def is_readout(name: str) -> bool:
    """Whether a name is one of a readout, and not of a hook."""
    return name.startswith(PREFIX)


def short_name(name: str) -> str:
    """`career` of `readout:career`."""
    return name.removeprefix(PREFIX)


def name_of(wanted: ReadoutCapture, vector: StoredVector) -> str:
    """The name of a readout."""
    return wanted.name or vector.name


def bias_of(wanted: ReadoutCapture, vector: StoredVector, param: str) -> float:
    """The number that is added to each value.

    Raises:
        InvalidRequest: the vector's own is no finite number.
    """
    if wanted.bias is not None:
        return wanted.bias
    text = vector.metadata.get(BIAS, "0")
    try:
        bias = float(text)
    except ValueError:
        bias = float("nan")
    if not abs(bias) < float("inf"):
        raise InvalidRequest(
            f"the bias in the metadata of vector {vector.id} ({vector.name}) is {text!r}, which is no finite "
            "number; give the readout a bias, or store the vector again",
            param=f"{param}.bias",
        )
    return bias


def resolve_readout(
    wanted: ReadoutCapture, vector: StoredVector, model: str, structure: ModelStructure | None, param: str
) -> str:
    """The canonical name of the hook whose rows a readout reads.

    Args:
        vector: the stored one that the capture names.
        structure: of the model; None if it is unknown.
        param: field of the capture's entry.

    Raises:
        InvalidRequest: the vector is for another model, or rows of another width.
        UnknownHook: the model has no such hook.
    """
    if vector.model is not None and vector.model != model:
        raise InvalidRequest(
            f"vector {vector.id} ({vector.name}) was stored for the model {vector.model}, not {model}",
            param=f"{param}.vector",
        )
    name = wanted.hook or vector.hook
    if structure is None:
        return name
    said = f"vector {vector.id} ({vector.name}) has"
    return hooks.of_rows(name, structure, vector.width, said=said, param=f"{param}.hook")


def require_distinct(names: Iterable[str]) -> None:
    """Raises InvalidRequest if two readouts of a capture have one name."""
    known: set[str] = set()
    for place, name in enumerate(names):
        if name in known:
            raise InvalidRequest(
                f"two readouts are named {name}; give one of them another name",
                param=f"capture.readouts.{place}.name",
            )
        known.add(name)


def values_of(tokens: Sequence[int], values: Sequence[float], prompt_tokens: int) -> ReadoutValues:
    """The values of a sample in short.

    Args:
        tokens: of each value, ascending; at least one.
        prompt_tokens: of the first prompt; later tokens count as generated, those of tools too.
    """
    generated = [i for i, token in enumerate(tokens) if token >= prompt_tokens]
    chosen = generated or range(len(tokens))
    of_them = [values[i] for i in chosen]
    largest = max(of_them)
    return ReadoutValues(
        tokens=len(of_them),
        generated=bool(generated),
        max=largest,
        min=min(of_them),
        mean=sum(of_them) / len(of_them),
        last=of_them[-1],
        max_token=tokens[chosen[of_them.index(largest)]],
    )
