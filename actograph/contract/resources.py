"""Answers about jobs, samples, sessions and comparisons.

Times are Unix seconds (UTC), sizes are bytes. Differences of comparisons are condition minus baseline.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import override

from actograph.contract.base import (
    ErrorRecord,
    FiniteNumber,
    Resource,
    Spec,
    Text,
    example,
)
from actograph.contract.models import EngineName, ModelIdentity
from actograph.contract.readouts import ReadoutResults, ReadoutValues
from actograph.tables import cut, render

#: `answer`: the last turn calls no tool; `max_turns`, `context_length`: it calls one, but no further turn is
#: possible; `length`: a turn reached max_tokens
ToolUseEnd = Literal["answer", "max_turns", "context_length", "length"]


class ToolMessage(Resource):
    """A turn of the model, or the result of one call."""

    role: Literal["assistant", "tool"]
    content: str
    error: bool = Field(False, description="True if the call failed; the content is the error.")


class ToolUse(Resource):
    """Numbers of turns and tool calls of a sample."""

    turns: int = Field(description="Turns of the model.")
    calls: int = Field(description="Calls with a result, including failed ones.")
    errors: int = Field(description="Failed calls.")
    malformed: int = Field(description="Failed calls that could not be read.")
    ended: ToolUseEnd


class ToolTotals(Resource):
    """Totals of the tool use of a condition's samples."""

    samples: int = Field(description="Samples with tools.")
    calling: int = Field(description="Samples with at least one call.")
    turns: int
    calls: int
    errors: int
    malformed: int
    ended: dict[ToolUseEnd, int] = Field(description="End of a sample -> number of samples.")


def totals(uses: Mapping[ToolUse, int]) -> ToolTotals | None:
    """The totals of samples, given as their number for each tool use. Returns None without tools."""
    if not uses:
        return None
    found: Counter[str] = Counter()
    ended: Counter[ToolUseEnd] = Counter()
    for use, samples in uses.items():
        ended[use.ended] += samples
        found["calling"] += samples if use.calls else 0
        for name in ("turns", "calls", "errors", "malformed"):
            found[name] += samples * getattr(use, name)
    return ToolTotals(samples=sum(uses.values()), ended=ended, **found)


class JobStatus(StrEnum):
    QUEUED = "queued"  # accepted; no sample has been claimed
    IN_PROGRESS = "in_progress"  # samples are running
    COMPLETED = "completed"  # ended, at least one sample completed
    FAILED = "failed"  # ended without a completed sample, or stopped by an error
    CANCELLED = "cancelled"  # ended by the client; completed samples are kept

    def is_terminal(self) -> bool:
        return self in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)


class Progress(Resource):
    total: int
    completed: int
    failed: int


class Job(Resource):
    id: str
    object: Literal["job"] = "job"
    kind: str
    status: JobStatus
    model: str
    created_at: int
    started_at: int | None = None
    finished_at: int | None = None
    progress: Progress
    queue_position: int | None = Field(None, description="From 1; null once it has started or ended.")
    waiting_reason: str | None = Field(None, description="Reason why no worker runs it.")
    samples_per_second: float | None = Field(None, description="Mean over the last minute.")
    eta_seconds: float | None = Field(None, description="At `samples_per_second`; null if it does not run.")
    error: ErrorRecord | None = None
    priority: int
    owner: str | None = Field(None, description="`local`, or `key:...`.")
    paused_reason: str | None = Field(None, description="Quota that stops it until there is space.")
    deadline_at: int | None = Field(None, description="It fails then if it has not ended.")
    identity_sha256: str | None = None
    model_identity: ModelIdentity | None = Field(None, description="Of all its samples.")
    savepoints: dict[str, str] = Field({}, description="Savepoint -> hook point.")
    engine: EngineName | None = Field(None, description="null until the model is known.")
    engine_reason: str | None = Field(None, description="Why it is traced.")
    tags: list[str] = Field([])
    metadata: dict[str, str] = Field({})
    spec: dict[str, Any]
    results_url: str


class ConditionResults(Resource):
    """Scores of one condition; metric keys have lm-eval's form, `<metric>,<filter>`."""

    alias: str
    metrics: dict[str, float | None]
    intervals: dict[str, tuple[float, float]] = Field(
        {}, description="95 % interval of each mean; Wilson's for values from 0 to 1."
    )
    left_out: dict[str, int] = Field(
        {}, description="Problems that pass@k and maj@n leave out: too few of their epochs are completed."
    )
    samples: int = Field(description="Number of scored samples.")
    failed: int
    truncated: int = Field(description="Samples that reached max_tokens, or texts cut to the context.")
    tool_use: ToolTotals | None = Field(None, description="null without tools.")
    truncated_rate: float | None = Field(None, description="null without samples.")
    unparsed: dict[str, int] = Field({}, description="Samples without a readable answer.")
    unparsed_rate: dict[str, float] = Field({})
    readouts: dict[str, ReadoutResults] = Field({}, description="How often each readout fired.")


class RowDifference(Resource):
    """Rows of a replay, compared with the same rows of the session that it replays."""

    rows: int = Field(description="Number of compared rows.")
    difference: float = Field(description="Largest absolute difference of two numbers.")
    scale: float = Field(description="Largest absolute value of the compared rows.")
    tolerance: float = Field(description="Largest difference allowed, as a share of `scale`.")


class JobResults(Resource):
    object: Literal["job.results"] = "job.results"
    job_id: str
    status: JobStatus
    task: str | None = None
    progress: Progress
    conditions: dict[str, ConditionResults]
    compared: dict[str, RowDifference] = Field(
        {}, description="Of a replay: hook -> its rows in all sessions, with the largest numbers of any."
    )

    @override
    def __str__(self) -> str:
        return self.table()

    def table(self, num_fewshot: int | None = None) -> str:
        """Render one row per condition, metric and filter, with lm-eval's column names.

        Without any scores, as of a capture job, the columns for scores are left out.
        """
        if not any(condition.metrics for condition in self.conditions.values()):
            counts = [[name, one.samples, one.failed] for name, one in self.conditions.items()]
            return self._with_more(render(("Condition", ">Samples", ">Failed"), counts))
        rows: list[list[object]] = []
        for name, condition in self.conditions.items():
            scored = [key for key in condition.metrics if "_stderr," not in key]
            for key in scored or [","]:
                metric, _, filter_name = key.partition(",")
                figures = [
                    condition.metrics.get(key),
                    condition.metrics.get(f"{metric}_stderr,{filter_name}"),
                ]
                shown = ["N/A" if value is None else f"{value:.4f}" for value in figures]
                shown = shown if scored else ["", ""]
                row = [condition.alias, name, filter_name, num_fewshot, metric, *shown]
                rows.append([*row, condition.samples, condition.failed])
        left_out = [
            f"{name}: {key} leaves out {count} problem(s) with too few completed epochs"
            for name, condition in self.conditions.items()
            for key, count in condition.left_out.items()
        ]
        return self._with_more("\n".join([render(_RESULTS, rows), *left_out]))

    def _with_more(self, table: str) -> str:
        """The table, and those of readouts and of the compared rows of a replay."""
        rows = [
            [condition, name, verdict, of.samples, of.fired, f"{of.max:.4g}", f"{of.mean:.4g}"]
            for condition, one in self.conditions.items()
            for name, readout in one.readouts.items()
            for verdict in ("right", "wrong", "unscored")
            if (of := getattr(readout, verdict)).samples
        ]
        if rows:
            table = f"{table}\n\n{render(_READOUTS, rows)}"
        if not self.compared:
            return table
        rows = [
            [hook, one.rows, f"{one.difference:.3g}", f"{one.scale:.3g}", f"{one.tolerance:.3g}"]
            for hook, one in self.compared.items()
        ]
        return f"{table}\n\n{render(_DIFFERENCES, rows)}"


class Event(Resource):
    """An entry of a job's log, as sent over SSE."""

    id: int
    job_id: str
    event: str
    created_at: float
    data: dict[str, Any]


class ModelLoad(Resource):
    """A request to load a model, and its result. It is a job of kind `load`, with the same id."""

    id: str
    object: Literal["model.load"] = "model.load"
    model: str
    status: JobStatus
    created_at: int
    started_at: int | None = None
    finished_at: int | None = None
    worker_id: str | None = Field(None, description="Worker that loads it, or tried last.")
    options: dict[str, Any]
    error: ErrorRecord | None = Field(None, description="The worker keeps its previous model.")
    ok: bool = Field(False, description="True once the model is loaded.")
    savepoints: list[str] = Field([], description="Names of the requested savepoints.")


class SampleStatus(StrEnum):
    PENDING = "pending"  # not claimed
    SUSPECT = "suspect"  # pending again after it was lost with two workers
    LEASED = "leased"  # leased by a worker
    COMPLETED = "completed"  # text, scores and session are stored
    FAILED = "failed"  # ended with an error, which is stored
    CANCELLED = "cancelled"  # its job ended first; a retry of the job runs it


class Sample(Resource):
    """The unit of work: one problem under one condition in one epoch."""

    id: str
    object: Literal["sample"] = "sample"
    job_id: str
    sample_index: int = Field(description="Row of the dataset, counted from 0.")
    condition: str | None = None
    epoch: int = 0
    status: SampleStatus
    input: dict[str, Any]
    prompt: str | None = Field(None, description="The text that the model reads.")
    completion: str | None = None
    finish_reason: Literal["stop", "length", "readout"] | None = None
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    seed: int | None = None
    scores: dict[str, "Score"] = Field({})
    readouts: dict[str, ReadoutValues] = Field({}, description="Readout -> its values in short.")
    tool_use: ToolUse | None = Field(None, description="null without tools.")
    messages: list[ToolMessage] = Field([], description="With tools only.")
    error: ErrorRecord | None = None
    session_id: str | None = None
    losses: int = Field(0, description="Workers lost with it; after 3 it runs alone, after 4 it fails.")
    started_at: int | None = None
    finished_at: int | None = None


class Score(Resource):
    """A scorer's verdict; `answer` is null if the scorer found no answer."""

    value: float
    answer: str | None = None


class TensorInfo(Resource):
    """A tensor of a session."""

    shape: tuple[int, int] = Field(description="[rows, width]")
    dtype: str = Field(description="Name in safetensors: F32, BF16, F16, I64, ...")
    first_row: int = Field(0, description="Token of row 0.")
    position_offset: int | None = Field(None, description="Start in row_positions; null: consecutive.")
    summary: str | None = Field(None, description="Reduction that made this row.")
    over: int | None = Field(None, description="Number of reduced rows.")
    compared: RowDifference | None = Field(
        None, description="With the rows of `source_session`; null if none were compared."
    )
    latents: int | None = Field(
        None,
        description="Of the latents of an SAE: how many it has. A row has numbers or activations of some.",
    )
    nbytes: int = 0


class SessionFile(Resource):
    """A stored file of a session."""

    name: str
    bytes: int
    sha256: str


class Session(Resource):
    """A sample's tokens and its captured activations."""

    id: str
    object: Literal["activation.session"] = "activation.session"
    job_id: str
    sample_id: str
    sample_index: int
    condition: str | None = None
    epoch: int = 0
    model: str
    created_at: int
    prompt_tokens: int
    generated_tokens: int
    rows: int = Field(description="Tokens that the model has read: prompt_tokens + generated_tokens - 1.")
    bytes: int
    dtype: str
    hooks: dict[str, TensorInfo]
    files: list[SessionFile]
    tags: list[str] = Field([])
    scores: dict[str, Score] = Field({}, description="Scores of its sample.")
    correct: bool | None = Field(None, description="Verdict of the task's first scorer.")
    owner: str | None = Field(None, description="`local`, or `key:...`.")
    expires_at: int | None = Field(None, description="null keeps it.")
    identity_sha256: str | None = None
    source_session: str | None = Field(None, description="The session that it replays.")
    pinned: bool = False


#: scores of a request
MAX_SCORED_SESSIONS = 1000


class ForeignScore(Spec):
    """A score by another program."""

    value: FiniteNumber
    answer: Text | None = Field(None, description="The answer that was judged.")


def _bare(value: Any) -> Any:
    return {"value": value} if type(value) in (int, float) else value


#: a bare number is a score without an answer
ScoreGiven = Annotated[
    ForeignScore, BeforeValidator(_bare, json_schema_input_type=FiniteNumber | ForeignScore)
]


class SessionScores(Spec):
    """Scores of one session's sample by another program. Its scores under other names are kept."""

    session_id: str = Field(max_length=64)
    scores: dict[Annotated[str, Field(min_length=1, max_length=256)], ScoreGiven] = Field(max_length=64)
    correct: bool | None = Field(None, description="Verdict; null leaves it as it is.")


class SessionScoresRequest(Spec):
    """Scores of many sessions; all are stored, or none."""

    model_config = example(
        sessions=[
            {
                "session_id": "ses_37605916fa3f6c13ca4eb7e0ccb6c41c",
                "scores": {"match": {"value": 1.0, "answer": "42"}, "clarity": 4},
                "correct": True,
            }
        ]
    )

    sessions: list[SessionScores] = Field(min_length=1, max_length=MAX_SCORED_SESSIONS)

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        counts = Counter(one.session_id for one in self.sessions)
        if twice := [name for name, count in counts.items() if count > 1]:
            raise ValueError(f"session {twice[0]} is named twice; give all its scores together")
        return self


class SessionStats(Resource):
    object: Literal["activation.session.stats"] = "activation.session.stats"
    sessions: int
    bytes: int
    rows: int


class SessionDeletion(Resource):
    """Result of a bulk deletion; with `dry_run` nothing is deleted."""

    object: Literal["activation.session.deletion"] = "activation.session.deletion"
    dry_run: bool
    sessions: int
    bytes: int
    pinned: int = Field(0, description="Matching sessions that are kept because they are pinned.")


class SessionChange(Resource):
    """Result of a bulk change; with `dry_run` nothing is changed."""

    object: Literal["activation.session.change"] = "activation.session.change"
    dry_run: bool
    sessions: int


_RESULTS = ("Tasks", "Condition", "Filter", ">n-shot", "Metric", ">Value", ">Stderr", ">Samples", ">Failed")
_READOUTS = ("Condition", "Readout", "Answers", ">Samples", ">Fired", ">Mean of largest", ">Mean")
_DIFFERENCES = ("Hook", ">Rows compared", ">Largest difference", ">Largest value", ">Tolerance")
_SCORES = ("Condition", "Metric", ">Pairs", ">Baseline", ">Value", ">Difference", "Interval", ">McNemar p")
_TEXTS = ("Condition", ">Token", ">Character", "Text")
#: columns of a terminal for a text in a table
_TEXT_COLUMNS = 100
#: characters that are shown before the first that differs
_BEFORE = 40


class PairedDifference(Resource):
    """Means over the pairs, and their difference."""

    pairs: int = Field(description="Samples of the two conditions with the same problem and epoch.")
    baseline: float | None = Field(None, description="Mean under the baseline; null without pairs.")
    condition: float | None = Field(None, description="Mean under the condition.")
    difference: float | None = Field(None, description="condition - baseline, epochs of a problem averaged.")
    low: float | None = Field(None, description="Lower bound of the bootstrap interval over problems.")
    high: float | None = Field(None, description="Upper bound; null below two problems.")

    def cells(self, digits: int) -> list[object]:
        """Cells of a table: pairs, both means, difference and interval."""
        if self.baseline is None or self.condition is None or self.difference is None:
            return [self.pairs, "N/A", "N/A", "N/A", "N/A"]
        bounds = "N/A"
        if self.low is not None and self.high is not None:
            bounds = f"{self.low:+.{digits}f} to {self.high:+.{digits}f}"
        means = [f"{self.baseline:.{digits}f}", f"{self.condition:.{digits}f}"]
        return [self.pairs, *means, f"{self.difference:+.{digits}f}", bounds]


class MetricDifference(PairedDifference):
    """A scorer's values under both conditions."""

    only_baseline: int | None = Field(None, description="Pairs that only the baseline got right.")
    only_condition: int | None = Field(None, description="Pairs that only the condition got right.")
    mcnemar_p: float | None = Field(None, description="Two-sided exact p-value; null with several epochs.")


class ConditionComparison(Resource):
    """Comparison of one condition with the baseline."""

    unpaired: int = Field(description="Completed samples whose counterpart failed or has not ended.")
    metrics: dict[str, MetricDifference]
    prompt_tokens: PairedDifference
    generated_tokens: PairedDifference


class JobComparison(Resource):
    """Comparison of each condition of a job with its baseline; available while the job runs."""

    object: Literal["job.comparison"] = "job.comparison"
    job_id: str
    status: JobStatus
    baseline: str
    level: float = Field(description="Coverage of the intervals.")
    resamples: int
    conditions: dict[str, ConditionComparison]

    @override
    def __str__(self) -> str:
        """Render one row per condition and metric."""
        rows = []
        for name, condition in self.conditions.items():
            for key, metric in condition.metrics.items():
                p = "" if metric.mcnemar_p is None else f"{metric.mcnemar_p:.4g}"
                rows.append([name, key, *metric.cells(4), p])
            rows.append([name, "prompt_tokens", *condition.prompt_tokens.cells(1), ""])
            rows.append([name, "generated_tokens", *condition.generated_tokens.cells(1), ""])
        return f"baseline: {self.baseline}\n\n{render(_SCORES, rows)}"


class ConditionText(Resource):
    """The text of a condition, where it parts from the baseline's, and how far captured rows moved."""

    text: str | None = Field(description="The completion; null if the sample is not completed.")
    prompt: str | None = Field(None, description="If it differs from the baseline's.")
    session_id: str | None = None
    character: int | None = Field(None, description="First character that differs, from 0; null if none.")
    token: int | None = Field(
        None, description="First generated token that differs, from 0; null if none, or without two sessions."
    )
    shifts: dict[str, float] = Field(
        {},
        description="Hook -> |row - baseline's row| / |baseline's row|, of the row that chose `token`, or of "
        "the last row of equal texts.",
    )


class ProblemTexts(Resource):
    """The texts of all conditions on one problem in one epoch."""

    sample_index: int
    epoch: int
    prompt: str = Field(description="The text that the model read under the baseline.")
    baseline: str
    session_id: str | None = None
    conditions: dict[str, ConditionText]


class TextComparison(Resource):
    """The texts of a job's conditions side by side; available while the job runs."""

    object: Literal["job.text_comparison"] = "job.text_comparison"
    job_id: str
    status: JobStatus
    baseline: str
    data: list[ProblemTexts] = Field(description="In the order of the dataset.")
    has_more: bool = Field(description="Whether further problems follow, from `offset` + `limit`.")

    @override
    def __str__(self) -> str:
        """Render a table for each problem, and the mean shift of each hook over the problems."""
        parts = [_problem_table(self.baseline, one) for one in self.data]
        shifts: dict[str, dict[str, list[float]]] = {}
        for one in self.data:
            for name, found in one.conditions.items():
                for hook, value in found.shifts.items():
                    shifts.setdefault(hook, {}).setdefault(name, []).append(value)
        if shifts:
            names = list(dict.fromkeys(name for found in shifts.values() for name in found))
            rows = [[hook, *(_mean(found.get(name, ())) for name in names)] for hook, found in shifts.items()]
            title = "mean shift of the rows where texts part, as a share of the baseline's row"
            parts.append(f"{title}\n{render(('Hook', *(f'>{name}' for name in names)), rows)}")
        return "\n\n".join(parts)


def _from(text: str, place: int) -> str:
    """A text from shortly before a place."""
    return f"…{text[place - _BEFORE :]}" if place > _BEFORE else text


def _mean(values: Collection[float]) -> str:
    return f"{sum(values) / len(values):.4g}" if values else ""


def _problem_table(baseline: str, found: ProblemTexts) -> str:
    epoch = f", epoch {found.epoch}" if found.epoch else ""
    title = f"problem {found.sample_index}{epoch}: {found.prompt}"
    rows: list[list[object]] = [[baseline, "", "", cut(found.baseline, _TEXT_COLUMNS)]]
    for name, one in found.conditions.items():
        if one.text is None:
            text = "(not completed)"
        else:
            text = (
                "(the same)" if one.character is None else cut(_from(one.text, one.character), _TEXT_COLUMNS)
            )
        rows.append([name, one.token, one.character, text])
    return f"{cut(title, _TEXT_COLUMNS)}\n{render(_TEXTS, rows)}"
