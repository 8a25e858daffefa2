"""Messages between a host and the engine's process: requests, answers, rows, sizes of a run.

Plain data without torch: the host imports nothing else of the engine. A host prompts, scores and stores; the
engine turns token ids into token ids and rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, SkipValidation, TypeAdapter, with_config

from actograph.contract.errors import ActographError
from actograph.contract.interventions import EditOp
from actograph.contract.row_selection import NamedPositions, Positions, TokenRange
from actograph.contract.saes import SaeConfig
from actograph.contract.specs import Dtype, SamplingSpec
from actograph.dtypes import DTYPES, SCALE_BYTES

FinishReason = Literal["stop", "length", "readout", "timeout", "cancelled", "dropped", "error"]
Reduce = Literal["none", "mean", "max", "last"]

#: statistics of a channel, by the name under which they are stored
STATISTICS = ("count", "mean", "variance", "min", "max", "rms", "kurtosis", "over")

_ARRAYS = ConfigDict(arbitrary_types_allowed=True)

# requests


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenRule:
    """Tokens of one request that no name of positions selects.

    Attributes:
        prompt: selected places of the prompt, ascending.
        positions: decide about generated tokens, by their numbers and segments.
        first_prompt: tokens of the sample's first prompt, from which negative numbers count.
        number: token number of the first generated token in its sample.
        before: segments of the sample's earlier tokens, each with its number of tokens.
        annotations: whether GSM8K's calculations are tool calls.
    """

    prompt: tuple[int, ...]
    positions: Positions
    first_prompt: int
    number: int
    before: tuple[tuple[str, int], ...] = ()
    annotations: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadoutLimit:
    """A number that a readout may cross: at the first generated token with a value beyond it.

    Attributes:
        name: of a readout of the capture, which must keep the token.
    """

    name: str
    above: float | None = None
    below: float | None = None

    def crossed(self, value: float) -> bool:
        """Whether a value is beyond it."""
        return (self.above is not None and value > self.above) or (
            self.below is not None and value < self.below
        )


@with_config(_ARRAYS)
@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Edit:
    """One intervention, resolved for a model.

    Attributes:
        hook: canonical name or module location.
        vector: float32 [width].
        rule: selects the tokens instead of `positions`.
        columns: that are changed; `vector` has a number for each. None changes all.
        after: it begins with the token after the one that crosses this limit.
    """

    hook: str
    op: EditOp
    coefficient: float = 1.0
    vector: Annotated[NDArray[np.float32] | None, SkipValidation] = None
    positions: NamedPositions | TokenRange = "all"
    rule: TokenRule | None = None
    columns: tuple[int, ...] | None = None
    after: ReadoutLimit | None = None

    @property
    def changes_nothing(self) -> bool:
        """True if the edit has no effect; it is left out, so not even the sign of a zero changes."""
        if self.op in ("add", "add_row_norm", "project_out"):
            return self.coefficient == 0.0
        return self.op == "scale" and self.coefficient == 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StatisticsOptions:
    """Per-channel statistics, delivered as tensors `<hook>.<statistic>` of one row."""

    threshold: float | None = None  # count values whose magnitude is over it
    rows: bool = True  # whether the rows themselves are delivered beside them


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoding:
    """Rows of a hook that are encoded by an SAE.

    Attributes:
        name: of the latents; the delivered rows have the names of `actograph.contract.saes.part_names`.
        hook: canonical name or module location.
        top: latents of a row that are kept.
        config: of the SAE.
        sha256: of its weights, by which two SAEs are one.
        path: of its weights, a safetensors file of this machine.
    """

    name: str
    hook: str
    top: int
    config: SaeConfig
    sha256: str
    path: str


@with_config(_ARRAYS)
@dataclass(frozen=True, kw_only=True, slots=True)
class Readout:
    """An inner product of a hook's rows with a vector, plus a bias.

    Attributes:
        name: of the delivered rows, which have one number each.
        hook: canonical name or module location.
        sha256: of the vector, by which two vectors are one.
        vector: float32 [width].
    """

    name: str
    hook: str
    sha256: str
    bias: float = 0.0
    vector: Annotated[NDArray[np.float32] | None, SkipValidation] = field(default=None, compare=False)

    @property
    def width(self) -> int:
        """Numbers of the vector, which has been sent."""
        assert self.vector is not None
        return len(self.vector)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadoutAt:
    """The value of a readout at one token of a prompt."""

    readout: Readout
    token: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Capture:
    """Rows to capture of a request.

    Attributes:
        hooks: canonical names or module locations, as `actograph.contract.hooks.expand` returns them.
        encodings: by SAEs, of the same tokens.
        readouts: of the same tokens.
        positions: tokens to keep, unless the request has a rule for them.
        held_rows: number of rows that the host holds in memory until the end of the sample decides on them.
        columns: features to keep; a number keeps the first ones, None all.
        reduce: one row instead of all that were chosen.
    """

    hooks: tuple[str, ...]
    encodings: tuple[Encoding, ...] = ()
    readouts: tuple[Readout, ...] = ()
    positions: NamedPositions = "all"
    dtype: Dtype = "model"
    held_rows: int = 0
    columns: int | tuple[int, ...] | None = None
    reduce: Reduce = "none"
    statistics: StatisticsOptions | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is captured."""
        return not self.hooks and not self.encodings and not self.readouts

    @property
    def summarises(self) -> bool:
        """Whether rows are summed up."""
        return self.reduce != "none" or self.statistics is not None

    @property
    def keeps_rows(self) -> bool:
        """Whether rows are delivered as they were computed."""
        return self.reduce == "none" and (self.statistics is None or self.statistics.rows)


@dataclass(frozen=True, slots=True)
class TextEnd:
    """Ends a generation when its text ends with a pattern."""

    pattern: str  # regular expression of the end of the text
    last: str  # a character that every such end ends with
    window: int  # tokens that such an end has at most


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Request:
    """One prompt to continue, or to read if its `max_tokens` is 0, with all that is asked of it.

    Attributes:
        key: names it in a run, and comes back unchanged.
        seed: all randomness of this request; the sampling's own is not used.
        max_tokens: most tokens to generate; None: the sampling's.
        top_logprobs: likeliest tokens to report with each token's log probability; None: none are computed.
        score_prompt: log probabilities of the prompt's tokens too.
        scored_next: with `score_prompt`, a further token to score, which the model does not read.
        next_tokens: of a prompt that is only read, tokens whose log probabilities after it are wanted.
        value_at: of a prompt that is only read, a value that is wanted.
        variants: further edits with which the prompt is read again, each time for the log probabilities of
            `next_tokens` and `value_at`. All of them replace rows of single tokens, see `check_variants`.
        stop_at: ends it beside the sampling's stop strings.
        grammar: of the generated text, in llguidance's form of Lark's.
        edits: in the order in which they apply.
        rule: of rows to keep, instead of the capture's positions.
        stops: readouts of the capture that end it.
        sums: name under which summaries go on from one turn of a sample to the next, until it is forgotten.
        time_limit: seconds from its start to its end as "timeout".
        priority: it takes part in the next pass, before other prompts: a chat.
        live: its tokens are told as they come, and values of its readouts.
    """

    key: str
    prompt_ids: tuple[int, ...]
    seed: int
    sampling: SamplingSpec = field(default_factory=SamplingSpec)
    max_tokens: int | None = None
    top_logprobs: int | None = None
    score_prompt: bool = False
    scored_next: int | None = None
    next_tokens: tuple[int, ...] = ()
    value_at: ReadoutAt | None = None
    variants: tuple[tuple[Edit, ...], ...] = ()
    stop_at: TextEnd | None = None
    grammar: str | None = None
    edits: tuple[Edit, ...] = ()
    capture: Capture | None = None
    rule: TokenRule | None = None
    stops: tuple[ReadoutLimit, ...] = ()
    sums: str | None = None
    time_limit: float | None = None
    priority: bool = False
    live: bool = False

    @property
    def most_generated(self) -> int:
        """Most tokens to generate; 0: the prompt is only read."""
        return self.sampling.max_tokens if self.max_tokens is None else self.max_tokens

    @property
    def most_run(self) -> int:
        """Most tokens that the model runs; the last generated token is never run."""
        return len(self.prompt_ids) + max(self.most_generated - 1, 0)

    @property
    def limits(self) -> tuple[ReadoutLimit, ...]:
        """Limits of readouts that end it, or begin an edit."""
        return (*self.stops, *(edit.after for edit in self.edits if edit.after is not None))

    @property
    def values_at_once(self) -> bool:
        """Whether the values of its readouts are read after each token."""
        told = self.live and self.capture is not None and bool(self.capture.readouts)
        return told or bool(self.limits)


# answers


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural log probabilities at one step, before temperature, top-k and top-p."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]  # the likeliest, descending


@with_config(_ARRAYS)
@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """One continued prompt.

    `finish_reason` is "stop" (end token or stop string), "length" (max_tokens), "readout" (a readout crossed
    its number at the token before the last one, which the model never read), "timeout" (the time limit;
    the rows so far are delivered), "cancelled" (the run was stopped; the ids so far are kept), "dropped"
    (this one alone was stopped; the ids so far are kept) or "error" (see `error`; no ids).
    An `error` beside "stop" or "length" means that the tokens are valid and the captured rows are not; beside
    "cancelled" it is the error of the whole run, for which this request need not be the reason.
    """

    key: str
    prompt_ids: tuple[int, ...]
    generated_ids: tuple[int, ...]  # as sampled, with the end token that ended it
    finish_reason: FinishReason
    cached_tokens: int = 0  # first tokens of the prompt that were computed for several requests at once
    error: Annotated[BaseException | None, SkipValidation] = None
    logprobs: tuple[TokenLogprobs, ...] | None = None  # of each generated id; None if not requested
    # of each id of the prompt, None for the first; None if not requested
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    # of the request's `next_tokens`, natural; None if the prompt was not read to its end
    next_logprobs: tuple[float, ...] | None = None
    # the same after each of the request's variants; None if it has none, or not all were read
    variant_logprobs: tuple[tuple[float, ...], ...] | None = None
    # of the request's `value_at`, and of each variant; None for a variant that cannot change it
    value: float | None = None
    variant_values: tuple[float | None, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of one hook: row `i` belongs to token `first_row + i`, or to `tokens[i]` where given.

    The pieces may be memory of the engine, which is valid until the sink's `write` returns.

    Attributes:
        pieces: in order, one at least: [rows, bytes of a row], contiguous; F8_E4M3 rows end with their scale.
        dtype: safetensors' name.
        tokens: ascending; None where the rows are consecutive.
        over: number of rows that this row summarises.
        finite: the device has found all numbers to be finite; False: it did not look, or some are not.
    """

    first_row: int
    pieces: tuple[NDArray[np.uint8], ...]
    dtype: str
    tokens: tuple[int, ...] | None = None
    over: int | None = None
    finite: bool = False

    @property
    def count(self) -> int:
        return sum(len(piece) for piece in self.pieces)

    @property
    def width(self) -> int:
        """Numbers of a row."""
        row_bytes: int = self.pieces[0].shape[1]
        kind = DTYPES[self.dtype]
        return (row_bytes - (SCALE_BYTES if kind.has_scales else 0)) // kind.bits.itemsize

    def copied(self) -> "Rows":
        """The same in new memory."""
        return replace(self, pieces=(np.concatenate(self.pieces),))


# runs


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """Sizes of a run.

    Attributes:
        slots: requests at once; 0: the default of the device.
        urgent: priority requests at once, besides.
        row_bytes: host memory for captured rows.
        shard_bytes: rows of a request that are gathered before they leave.
        traced: whether the passes run under nnsight, also if the model suits packed ones.
        cuda_graphs: whether decode passes are replayed as CUDA graphs, where device and model allow it.
        repeatable: whether the numbers of a request have the same bits whatever runs beside it.
    """

    slots: int = 0
    urgent: int = 2
    row_bytes: int = 2 << 30
    shard_bytes: int = 256 << 20
    traced: bool = False
    cuda_graphs: bool = False
    repeatable: bool = False


@dataclass(slots=True)
class RunStatistics:
    """Counts of one run."""

    passes: int = 0
    pass_seconds: float = 0.0  # in passes: launching them, and waiting for their tokens
    computed: int = 0  # tokens that the model ran
    shared: int = 0  # tokens of prompts that were copied from a shared prefix
    generated: int = 0
    rows: int = 0  # rows delivered, over all hooks
    waits: int = 0  # pauses for the sink
    retries: int = 0  # passes that failed and ran again in parts


@dataclass(frozen=True, slots=True)
class EngineWork:
    """The work of an engine since it loaded its model."""

    computed_tokens: int = 0  # that the model ran
    generated_tokens: int = 0
    pass_milliseconds: int = 0

    def plus(self, run: RunStatistics) -> "EngineWork":
        """This and a run."""
        return EngineWork(
            computed_tokens=self.computed_tokens + run.computed,
            generated_tokens=self.generated_tokens + run.generated,
            pass_milliseconds=self.pass_milliseconds + round(1000 * run.pass_seconds),
        )


class Source(Protocol):
    """Requests that wait. Called from one thread."""

    @property
    def exhausted(self) -> bool:
        """True if `pull` will never return a request again."""
        ...

    def pull(self, room: int, *, urgent: int, wait: float) -> Sequence[Request]:
        """Take up to `room` requests, and up to `urgent` priority requests besides.

        Args:
            wait: seconds that it may block until it has a request; 0 while something is running.
        """
        ...


class Control(Protocol):
    """Steers a run and follows it. Called from the thread of `Source`."""

    def stopped(self) -> bool:
        """True cancels every request that has not ended."""
        ...

    def dropped(self, key: str) -> bool:
        """True ends this request as "dropped"."""
        ...

    def beat(self) -> None:
        """The run is alive: called after each pass, while idle and while it waits for the sink."""
        ...


class Results(Protocol):
    """Takes results: exactly one `done` for each request that was pulled."""

    def started(self, key: str, generated_ids: Sequence[int]) -> None:
        """A request has its place; `generated_ids` is a live view."""
        ...

    def valued(self, key: str, token: int, values: Mapping[str, float]) -> None:
        """Take the values of a live request's readouts of one generated token, in its order."""
        ...

    def done(self, generation: Generation) -> None:
        """Take a generation; all its rows are in the sink. From the sink's thread."""
        ...


class Sink(Protocol):
    """Takes captured rows, from a thread of its own."""

    def write(self, key: str, rows: Mapping[str, Rows]) -> None:
        """Take one chunk of a request.

        Per hook the chunks arrive in row order and without gaps. Hooks that name the same tensor share its
        memory, which is the engine's again when this returns. An exception fails this request only, and
        nothing more of it is written. The rows of a request that fails later are void.
        """
        ...


# their JSON


def errors_by_class() -> dict[str, type[ActographError]]:
    """Every class of error by its name, which crosses beside the message."""
    found: dict[str, type[ActographError]] = {}
    waiting: list[type[ActographError]] = [ActographError]
    while waiting:
        kind = waiting.pop()
        found[kind.__name__] = kind
        waiting += kind.__subclasses__()
    return found


def error_record(error: BaseException) -> dict[str, Any]:
    """An error as data; one that is not ours keeps its class in the message."""
    if isinstance(error, ActographError):
        return {
            "kind": type(error).__name__,
            "message": error.message,
            "param": error.param,
            "details": error.details,
        }
    return {"kind": "", "message": f"{type(error).__name__}: {str(error) or 'without a message'}"}


class EngineError(Exception):
    """An error of the engine's process that is none of ours; its log has the trace."""


def error_of(record: Mapping[str, Any]) -> Exception:
    """The error of a record."""
    kind = errors_by_class().get(record["kind"])
    if kind is None:
        return EngineError(record["message"])
    error = kind(record["message"])
    error.param, error.details = record.get("param"), record.get("details")
    return error


_REQUEST, _GENERATION = TypeAdapter(Request), TypeAdapter(Generation)


def request_json(request: Request) -> dict[str, Any]:
    """A request as JSON, without its vectors."""
    unsaid = {"__all__": {"vector"}}
    made: dict[str, Any] = _REQUEST.dump_python(
        request,
        mode="json",
        exclude={
            "edits": unsaid,
            "variants": {"__all__": unsaid},
            "value_at": {"readout": {"vector"}},
            "capture": {"readouts": unsaid},
        },
        exclude_defaults=True,
    )
    if request.variants:
        made["widths"] = [len(row) for row in _rows_of(request)]
    return made


def request_of(data: Mapping[str, Any], vectors: Sequence[NDArray[np.float32] | None]) -> Request:
    """The request of a JSON object.

    Args:
        vectors: see `vectors_of`.

    Raises:
        ValueError: it is not a request.
    """
    request = _REQUEST.validate_python(data)
    count, capture = len(request.edits), request.capture
    pairs = zip(request.edits, vectors[:count], strict=True)
    request = replace(request, edits=tuple(replace(edit, vector=vector) for edit, vector in pairs))
    if request.variants:
        *vectors, joined = vectors
        assert joined is not None
        rows = iter(np.split(joined, np.cumsum(data["widths"])[:-1]))
        variants = tuple(tuple(replace(edit, vector=next(rows)) for edit in one) for one in request.variants)
        request = replace(request, variants=variants)
    if request.value_at is not None:
        *vectors, vector = vectors
        value_at = replace(request.value_at, readout=replace(request.value_at.readout, vector=vector))
        request = replace(request, value_at=value_at)
    if capture is None or not capture.readouts:
        return request
    read = zip(capture.readouts, vectors[count:], strict=True)
    readouts = tuple(replace(one, vector=vector) for one, vector in read)
    return replace(request, capture=replace(capture, readouts=readouts))


def vectors_of(request: Request) -> list[NDArray[np.float32] | None]:
    """The vectors of a request's edits, then those of its readouts, then those of its variants as one."""
    readouts = [] if request.capture is None else [*request.capture.readouts]
    if request.value_at is not None:
        readouts.append(request.value_at.readout)
    joined = [np.concatenate(_rows_of(request))] if request.variants else []
    return [*(edit.vector for edit in request.edits), *(one.vector for one in readouts), *joined]


def _rows_of(request: Request) -> list[NDArray[np.float32]]:
    """The rows of all variants, in their order."""
    return [edit.vector for one in request.variants for edit in one if edit.vector is not None]


def generation_json(generation: Generation) -> dict[str, Any]:
    """A generation as JSON, without the ids of its prompt, which the host has."""
    made: dict[str, Any] = _GENERATION.dump_python(
        generation, mode="json", exclude={"error", "prompt_ids"}, exclude_defaults=True
    )
    if generation.error is not None:
        made["error"] = error_record(generation.error)
    return made


def generation_of(data: Mapping[str, Any], prompt_ids: tuple[int, ...]) -> Generation:
    """The generation of a JSON object."""
    error = data.get("error")
    made = _GENERATION.validate_python({**data, "error": None, "prompt_ids": prompt_ids})
    return made if error is None else replace(made, error=error_of(error))


_OPTIONS, _STATISTICS_OF_RUN = TypeAdapter(RunOptions), TypeAdapter(RunStatistics)


def options_json(options: RunOptions) -> dict[str, Any]:
    """Options of a run as JSON."""
    made: dict[str, Any] = _OPTIONS.dump_python(options, mode="json")
    return made


def options_of(data: Mapping[str, Any]) -> RunOptions:
    """The options of a JSON object."""
    return _OPTIONS.validate_python(data)


def statistics_json(statistics: RunStatistics) -> dict[str, Any]:
    """Counts of a run as JSON."""
    made: dict[str, Any] = _STATISTICS_OF_RUN.dump_python(statistics, mode="json")
    return made


def statistics_of(data: Mapping[str, Any]) -> RunStatistics:
    """The counts of a JSON object."""
    return _STATISTICS_OF_RUN.validate_python(data)
