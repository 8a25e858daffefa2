"""Jobs that analyse stored sessions, and their results; see docs/guides/analysis.md.

Such a job has one sample. A worker of its own runs it (`actograph service analysis`), without a model.
"""

from collections.abc import Mapping
from operator import methodcaller
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, Field, model_validator
from typing_extensions import override

from actograph.contract.base import HookList, Resource, SessionId, Spec, example, fault_of
from actograph.contract.interventions import VectorName
from actograph.contract.row_selection import Positions, Reduce
from actograph.contract.specs import QueuedSpec
from actograph.short_texts import shorten
from actograph.tables import Columns, cut, describe, render, table

#: `model` of these jobs and of their workers; served models have no "=" in their names, see `parse_served`
ANALYSIS = "=analysis"
#: labels of sessions beside scores, and groups; `column:NAME` is both
CORRECT, CONDITION, SAMPLE, COLUMN = "correct", "condition", "sample", "column:"
#: columns that are fields of a capture job's inputs, and need no `column:`
OWN_COLUMNS = ("label", "group")
ABOUT_LABELS = (
    "`correct`, `condition`, `label` or `group` of the inputs, `column:NAME` of the dataset, or a metric key "
    "of the scores."
)
ABOUT_GROUPS = (
    "one `sample` (index in the dataset), one `group` of the inputs, or one value of a stored column, "
    "`column:NAME`"
)


def _is_group(value: str) -> str:
    if value in (SAMPLE, "group") or (value.startswith(COLUMN) and value != COLUMN):
        return value
    raise ValueError(f"{value!r} is no group. Write sample, group, or column:NAME for a stored column")


Label = Annotated[str, Field(min_length=1, max_length=300)]
Groups = Annotated[str, Field(max_length=300), AfterValidator(_is_group)]
#: an id, or its unique beginning, which the service completes
JobId = Annotated[str, Field(pattern=r"^job_[0-9a-f]{1,32}$")]
Bytes = Annotated[int, Field(ge=1, le=4 << 30)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
#: in place of a token: the one after each row
NEXT = "next"
TokenText = Annotated[str, Field(min_length=1, max_length=64)]
_EXAMPLE = {"jobs": ["job_8dd0b0a3c1c74dd3b4f6b65e06f0a6d2"]}


class SessionQuery(Spec):
    """The sessions of jobs, or sessions by their ids; null means any value."""

    jobs: list[JobId] = Field([], max_length=100, description="Ids of jobs, or their unique beginnings.")
    ids: list[SessionId] = Field([], max_length=100, description="Ids of sessions, instead of jobs.")
    condition: str | None = Field(None, max_length=64, description="Name of a condition.")
    sample_index: int | None = Field(None, ge=0, le=2**31 - 1, description="Row of the dataset.")
    correct: bool | None = Field(None, description="Result of the task's first scorer.")
    tag: str | None = Field(None, max_length=64, description="Tag of the sessions.")
    limit: int | None = Field(None, ge=1, description="Most sessions of each job, by their order in it.")

    @model_validator(mode="after")
    def _jobs_or_ids(self) -> Self:
        if bool(self.jobs) == bool(self.ids):
            fault = "both are given" if self.jobs else "neither is given"
            raise fault_of("jobs", f"name jobs, or sessions by ids; {fault}")
        return self


class AnalysisSpecBase(QueuedSpec):
    """Fields of all analyses."""

    sessions: SessionQuery
    hooks: HookList = Field(
        [], description="Stored hooks, or points such as `resid_post` for all of its layers. Empty: all."
    )

    @property
    def model(self) -> str:
        """The queue of the job."""
        return ANALYSIS

    @property
    def queries(self) -> dict[str, SessionQuery]:
        """Queries of sessions, by field."""
        return {"sessions": self.sessions}

    @property
    def attributes(self) -> bool:
        """Whether it takes apart what sublayers add to the residual stream."""
        return False


class OutliersSpec(AnalysisSpecBase):
    """Find outlier features and massive activations of hooks with a layer."""

    model_config = example(kind="outliers", sessions=_EXAMPLE, hooks=["resid_post"])

    kind: Literal["outliers"] = Field(description="Kind of the job.")
    positions: Positions = Field("all", description="Tokens to read, as in a capture spec.")
    threshold: float = Field(6.0, gt=0, allow_inf_nan=False, description="Least magnitude of an outlier.")
    layer_share: float = Field(0.25, ge=0, le=1, description="Least share of layers.")
    position_share: float = Field(0.06, ge=0, le=1, description="Least share of positions.")
    position_reading: Literal["union", "mean"] = Field(
        "union", description="A position counts if any layer has an outlier there, or layers are averaged."
    )
    together: bool = Field(False, description="Count points of a layer together.")
    massive_magnitude: float = Field(100.0, gt=0, allow_inf_nan=False, description="Massive ones are larger.")
    massive_ratio: float = Field(
        1000.0, gt=0, allow_inf_nan=False, description="Least multiple of the median."
    )


class RowsSpec(AnalysisSpecBase):
    """Fields of analyses of a matrix per hook, see GET /v1/jobs/{id}/matrix."""

    positions: Positions = Field("last_prompt", description="Tokens to read, as in a capture spec.")
    reduce: Reduce = Field("none", description="Reduce each session's rows to one.")
    seed: int = Field(0, ge=0, lt=2**32, description="Seed of folds, shuffles and resamples.")
    max_bytes: Bytes = Field(1 << 30, description="Most bytes of rows of one hook.")
    save_as: VectorName | None = Field(None, description="Store each hook's direction as a vector.")


class ProbeSpec(RowsSpec):
    """Fit and score a linear probe on each hook. Rows of one group stay on one side of every split."""

    model_config = example(
        kind="probe",
        sessions=_EXAMPLE,
        hooks=["resid_post"],
        positions="generated",
        reduce="mean",
        save_as="correctness",
    )

    kind: Literal["probe"] = Field(description="Kind of the job.")
    label: Label = Field(CORRECT, description=ABOUT_LABELS)
    method: Literal["logistic", "ridge", "mean_difference"] = Field(
        "logistic", description="Kind of probe. `ridge` also predicts numbers."
    )
    groups: Groups = Field(SAMPLE, description=f"Rows that stay together in every split: of {ABOUT_GROUPS}.")
    folds: int = Field(5, ge=2, le=100, description="Number of folds.")
    c: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="C of scikit-learn; null: by inner validation."
    )
    resamples: int = Field(1000, ge=1, le=10_000, description="Resamples of the intervals.")
    shuffles: int = Field(19, ge=0, le=10_000, description="Shuffles of the labels, for p-values.")
    level: float = Field(0.95, gt=0, lt=1, description="Coverage of the intervals.")


class CompareSpec(RowsSpec):
    """Compare two sets of sessions, problem by problem or as two independent sets.

    The sets are `sessions` and `other`, or the sessions with each of the two values of a `label`. Differences
    are `other` minus `sessions`, or the larger value minus the smaller.
    """

    model_config = example(
        kind="compare",
        sessions=_EXAMPLE | {"condition": "baseline"},
        other=_EXAMPLE | {"condition": "ep02"},
        hooks=["resid_post.12"],
    )

    kind: Literal["compare"] = Field(description="Kind of the job.")
    other: SessionQuery | None = None
    label: Label | None = Field(None, description=f"Instead of `other`, of two values: {ABOUT_LABELS}")
    paired: bool = Field(True, description="false: problems need not be on both sides; means are compared.")
    groups: Groups = Field(SAMPLE, description=f"Rows that are compared with each other: of {ABOUT_GROUPS}.")
    permutations: int = Field(999, ge=1, le=100_000, description="Of the sign-flip test.")
    top: int = Field(10, ge=0, le=10_000, description="Features to list, by effect.")

    @property
    def queries(self) -> dict[str, SessionQuery]:
        return super().queries | ({} if self.other is None else {"other": self.other})

    @model_validator(mode="after")
    def _two_sides(self) -> Self:
        if (self.other is None) == (self.label is None):
            raise ValueError("give exactly one of other and label")
        return self


class LensSpec(AnalysisSpecBase):
    """Read residual rows as next tokens, by the final norm and the head of their model's files."""

    model_config = example(kind="lens", sessions=_EXAMPLE, positions="generated")

    kind: Literal["lens"] = Field(description="Kind of the job.")
    hooks: HookList = Field(
        [], description="Stored `resid_pre`, `resid_mid` or `resid_post`. Empty: `resid_post` of all layers."
    )
    positions: Positions = Field("all", description="Tokens to read, as in a capture spec.")
    top: int = Field(5, ge=1, le=20, description="Tokens to list for each row.")
    listed: int = Field(100, ge=0, le=1000, description="Rows of each hook to list, the first ones.")
    token: TokenId | TokenText | None = Field(
        None,
        description="Attribute the logit of this token, or with `next` of the token after each row, to the "
        "embedding and to what each sublayer adds. An id, or the text of one token with its spaces.",
    )
    against: TokenId | TokenText | None = Field(
        None, description="Attribute the difference from this token's logit."
    )

    @property
    def attributes(self) -> bool:
        return self.token is not None

    @model_validator(mode="after")
    def _against_a_token(self) -> Self:
        if self.against is not None and self.token is None:
            raise ValueError("against needs a token")
        if self.against == NEXT:
            raise ValueError("`next` is no token to compare with; name one in against")
        return self


AnalysisSpec = OutliersSpec | ProbeSpec | CompareSpec | LensSpec
#: values of `kind`
AnalysisKind = Literal["outliers", "probe", "compare", "lens"]
ANALYSIS_KINDS: tuple[AnalysisKind, ...] = get_args(AnalysisKind)

#: content of the first file of an analysis's session
RESULT_FILE = "result.json"
#: warnings, and lines of each table, in the text of a result
_WARNINGS, _LINES = 3, 20


class SkippedSession(Resource):
    """A session that was left out, and the reason."""

    session_id: str
    reason: str


class AnalysisResult(Resource):
    """Content of `result.json`, the first file of an analysis's session."""

    kind: str
    spec: dict[str, Any]
    sessions: int = Field(description="Sessions with rows.")
    skipped: list[SkippedSession] = Field([], description="The first 100.")
    skipped_sessions: int = 0

    @property
    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Lines of each table by its title, such as those of the hooks; without empty tables."""
        lists = ("outlier_features", "massive_activations", "attribution")
        found: dict[str, list[dict[str, Any]]] = {name: getattr(self, name, []) for name in lists}
        hooks: dict[str, dict[str, Any]] = getattr(self, "hooks", {})
        found["hooks"] = [{"hook": hook} | _numbers(one) for hook, one in hooks.items()]
        experts: dict[str, dict[str, Any]] = getattr(self, "experts", {})
        found["experts"] = [{"layer": layer} | _numbers(use) for layer, use in experts.items()]
        return {name.replace("_", " "): _even(lines) for name, lines in found.items() if lines}

    @override
    def __str__(self) -> str:
        """Describe the result: its numbers, then its tables."""
        fields = {name for name, value in self if isinstance(value, list | dict | Resource)}
        parts = [describe(self, ["spec", *fields])]
        warnings: list[str] = getattr(self, "warnings", [])
        parts += [f"warning: {warning}" for warning in warnings[:_WARNINGS]]
        if len(warnings) > _WARNINGS:
            parts.append(f"{len(warnings) - _WARNINGS} more warnings are in {RESULT_FILE}")
        for name, lines in self.tables.items():
            columns: Columns = [(column, methodcaller("get", column)) for column in lines[0]]
            parts.append(f"{name}\n{table(columns, lines[: _most(name)])}")
            if (rest := len(lines[_LINES:])) and _most(name) is not None:
                parts.append(f"{rest} more {name} are in {RESULT_FILE}")
        return "\n\n".join(parts)


def _most(name: str) -> int | None:
    """Lines of a table in the text of a result: all of the hooks, which are as many as were asked for."""
    return None if name in ("hooks", "experts") else _LINES


def _even(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines with the same columns, None in those that a line lacks."""
    empty = dict.fromkeys(column for line in lines for column in line)
    return [empty | line for line in lines]


def _numbers(found: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a hook, and those of a probe's lists that people look for first."""
    numbers = {name: value for name, value in found.items() if isinstance(value, int | float)}
    if "baselines" in found:
        score = ranked_by(found)
        low, high = found[f"{score}_interval"]
        baselines = {name: one[score] for name, one in found["baselines"].items()}
        shown = ("auroc", "accuracy", "r2", "spearman", "rows", "groups", "p_corrected")
        known = {name: numbers[name] for name in shown if name in numbers}
        return known | {"low": low, "high": high} | baselines
    return numbers


class OutliersResult(AnalysisResult):
    kind: Literal["outliers"] = "outliers"
    positions: int = Field(description="Tokens that were read.")
    outlier_features: list[dict[str, Any]] = Field(
        description="`points`, `feature`, `layers`, `layer_share`, `position_share`, `largest`."
    )
    massive_activations: list[dict[str, Any]] = Field(
        description="`hook`, `session_id`, `position`, `feature`, `value`, `ratio`; the largest first."
    )
    massive_dropped: int = Field(description="Values over the magnitude that were too many to keep.")
    hooks: dict[str, dict[str, Any]] = Field(
        description="`values`, `mean`, `variance`, `kurtosis`, `largest`, `median_magnitude`."
    )
    experts: dict[str, dict[str, Any]] = Field(
        {},
        description="Layer -> `tokens`, `load`, `imbalance`, `router_entropy`, `pairs`, and `outliers` of "
        "each expert's inputs.",
    )


class ProbesResult(AnalysisResult):
    kind: Literal["probe"] = "probe"
    hooks: dict[str, dict[str, Any]] = Field(
        description="Scores, `baselines`, `classes`, `c`, `bias`, `p_value`, and `p_corrected` for the best "
        "of all hooks; the weights are in `directions.npz`. A probe of numbers has `r2` and `spearman` "
        "instead of `auroc` and `accuracy`."
    )
    warnings: list[str] = Field([], description="Doubts about the probes, each with its hook.")


#: titles of the scores that probes are ranked by
SCORE_TITLES = {"auroc": "AUROC", "r2": "R²"}


def ranked_by(found: Mapping[str, Any]) -> str:
    """Name of the score that a probe's result is ranked by: `auroc`, or `r2` if it predicts numbers."""
    return "r2" if "r2" in found else "auroc"


class ComparisonResult(AnalysisResult):
    kind: Literal["compare"] = "compare"
    hooks: dict[str, dict[str, Any]] = Field(description="Fields of `actograph.analysis.comparison`.")
    first: float | str | None = Field(None, description="Value of the label on the first side.")
    second: float | str | None = Field(None, description="Value of the label on the second side.")

    @override
    def __str__(self) -> str:
        """Describe the result, and say which side is subtracted from which."""
        spec = self.spec
        if label := spec.get("label"):
            values = [one if isinstance(one, str) else f"{one:g}" for one in (self.first, self.second)]
            first, second = (f"{label} = {one}" for one in values)
        else:
            first, second = (_side(spec[name]) for name in ("sessions", "other"))
        return f"differences: {second}, minus {first}\n{super().__str__()}"


def _side(query: Mapping[str, Any]) -> str:
    """One side of a comparison in words."""
    named = ", ".join(map(shorten, query.get("jobs") or ())) or f"{len(query.get('ids') or ())} sessions"
    condition = query.get("condition")
    return named if condition is None else f"{named} {condition or 'without a condition'}"


#: columns of a grid in a terminal, and characters of a token in one
_GRID_COLUMNS, _GRID_TEXT = 8, 9


class LensGrid(Resource):
    """The tokens on top at the first selected positions of the first session, by hook."""

    session_id: str
    positions: list[int]
    inputs: list[str] = Field(description="Text of the token at each position.")
    tokens: dict[str, list[str]] = Field(description="Hook -> text of the token on top at each position.")
    probabilities: dict[str, list[float]] = Field(description="Hook -> probabilities of these tokens.")

    @override
    def __str__(self) -> str:
        """Render layers over positions, the last layer on top, some positions at a time."""
        blocks = []
        for start in range(0, len(self.positions), _GRID_COLUMNS):
            shown = range(start, min(start + _GRID_COLUMNS, len(self.positions)))
            rows: list[list[object]] = [["", *(visible(self.inputs[place]) for place in shown)]]
            rows += [
                [
                    hook,
                    *(f"{visible(tokens[place])} {self.probabilities[hook][place]:.0%}" for place in shown),
                ]
                for hook, tokens in reversed(self.tokens.items())
            ]
            blocks.append(render(["Hook", *(str(self.positions[place]) for place in shown)], rows))
        title = f"tokens on top, by layer and position, of session {self.session_id}"
        return "\n\n".join([title, *blocks])


def visible(text: str) -> str:
    """A token's text with its spaces and line ends as characters."""
    return cut(text.replace("\n", "⏎").replace(" ", "·"), _GRID_TEXT)


class LensResult(AnalysisResult):
    kind: Literal["lens"] = "lens"
    hooks: dict[str, dict[str, Any]] = Field(
        description="`rows`, and means over them: `next_log_probability` and `next_is_top` of the token that "
        "follows, `agreement` of the top token with that of the last hook."
    )
    attribution: list[dict[str, Any]] = Field(
        [], description="`component`, and the `mean` and `mean_magnitude` of its contribution to the logit."
    )
    compared_rows: int = Field(
        0, description="Rows of the last layer whose lens was compared with stored logits."
    )
    grid: LensGrid | None = Field(None, description="null with `listed: 0`.")

    @override
    def __str__(self) -> str:
        grid = "" if self.grid is None else f"\n\n{self.grid}"
        return f"{super().__str__()}{grid}"


#: kind -> content of `result.json`
RESULTS: dict[str, type[AnalysisResult]] = {
    "outliers": OutliersResult,
    "probe": ProbesResult,
    "compare": ComparisonResult,
    "lens": LensResult,
}
