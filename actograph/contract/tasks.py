"""Tasks and scorers of evaluations: built-in names, and the format of your own. See docs/guides/tasks.md."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, JsonValue, Tag, model_validator

from actograph.contract.base import FileId, Name, ServerPath, Spec, Stops, example

MAX_TEMPLATE_CHARS = 100_000
MAX_EXAMPLES = 64

MAX_SCORERS = 16


class ScorerBase(Spec):
    """Base of all scorers. With different labels a job can have the same scorer twice."""

    label: Name | None = Field(None, description="Last part of the metric key; null uses the default.")

    @property
    def key(self) -> str:
        """The metric key in lm-eval's form, `<metric>,<filter>`; the filter may be `none`."""
        metric, _, usual = _KEYS[getattr(self, "name", "")].partition(",")
        return f"{metric},{self.label or usual}"


class StrictMatchScorer(ScorerBase):
    """lm-eval's strict-match of GSM8K: the number in the task's answer format."""

    name: Literal["strict-match"]
    form: Literal["gsm8k", "gsm8k_cot"] | None = Field(None, description="null: the task's.")


class FlexibleExtractScorer(ScorerBase):
    """lm-eval's flexible-extract of GSM8K: the last number in the completion."""

    name: Literal["flexible-extract"]


class NumericScorer(ScorerBase):
    """The stated final answer as a number, compared exactly with the target's."""

    name: Literal["numeric"]
    tolerance: float = Field(0.0, ge=0.0, le=1.0, description="Allowed difference, if one has decimals.")


class ExactScorer(ScorerBase):
    """True if completion and target are equal, ignoring case, white space and a final full stop."""

    name: Literal["exact"]


class IncludesScorer(ScorerBase):
    """True if the completion contains the target, ignoring case."""

    name: Literal["includes"]


class EfficiencyScorer(ScorerBase):
    """1 for up to `target_tokens` generated tokens, then a linear decrease to 0 at `max_tokens`."""

    name: Literal["efficiency"]
    target_tokens: int = Field(ge=1, le=1_000_000)
    max_tokens: int | None = Field(None, ge=1, le=1_000_000, description="null: the job's.")

    @model_validator(mode="after")
    def _falls(self) -> "EfficiencyScorer":
        if self.max_tokens is not None and self.max_tokens <= self.target_tokens:
            raise ValueError("max_tokens must be larger than target_tokens")
        return self


_KEYS = {
    "strict-match": "exact_match,strict-match",
    "flexible-extract": "exact_match,flexible-extract",
    "numeric": "exact_match,numeric",
    "exact": "exact_match,none",
    "includes": "includes,none",
    "efficiency": "efficiency,none",
}
#: names of scorers; a name may replace the object of a scorer without parameters
SCORER_NAMES = tuple(_KEYS)


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _distinct_keys(value: list["AnyScorer"]) -> list["AnyScorer"]:
    keys = [scorer.key for scorer in value]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"two scorers would write {', '.join(twice)}; give one of them a label")
    return value


AnyScorer = (
    StrictMatchScorer
    | FlexibleExtractScorer
    | NumericScorer
    | ExactScorer
    | IncludesScorer
    | EfficiencyScorer
)
ScorerSpec = Annotated[
    AnyScorer,
    Field(discriminator="name"),
    BeforeValidator(_named, json_schema_input_type=Literal[SCORER_NAMES] | dict[str, Any]),
]
ScorerList = Annotated[
    list[ScorerSpec], Field(min_length=1, max_length=MAX_SCORERS), AfterValidator(_distinct_keys)
]


class RescoreRequest(Spec):
    """New scorers for a job's completions; the first one gives the verdict."""

    model_config = example(scorers=["numeric", {"name": "efficiency", "target_tokens": 128}])

    scorers: ScorerList


def read_scorer_argument(text: str) -> Any:
    """Read a scorer of the command line: a name, or a JSON object."""
    return json.loads(text) if text.lstrip().startswith("{") else text


TaskName = Literal["gsm8k", "gsm8k_cot", "gsm8k_cot_zeroshot"]
#: built-in tasks with their own few-shot examples -> number of them; lm-eval shows all
OWN_EXAMPLES = {"gsm8k_cot": 8}
#: strings that end a completion
STOP_STRINGS: dict[str, tuple[str, ...]] = {
    "gsm8k": ("Question:", "</s>", "<|im_end|>"),
    "gsm8k_cot": ("Q:", "</s>", "<|im_end|>"),
    "gsm8k_cot_zeroshot": ("Q:", "</s>", "<|im_end|>"),
}
#: lm-eval's version of the built-in tasks
LM_EVAL_VERSION = 3.0

Template = Annotated[str, Field(min_length=1, max_length=MAX_TEMPLATE_CHARS)]


class FewshotSpec(Spec):
    """The few-shot examples of a task."""

    samples: list[dict[str, JsonValue]] = Field(
        default_factory=list, max_length=MAX_EXAMPLES, description="Shown in this order."
    )


def _numeric() -> list[AnyScorer]:
    return [NumericScorer(name="numeric")]


class TaskSpec(Spec):
    """A task of your own. Templates are Jinja over the columns of a row."""

    name: Name = Field(description="Name in the results.")
    prompt: Template = Field("{{question}}", description="Template of the prompt.")
    target: Template = Field("{{answer}}", description="The right answer, in the form that the scorers need.")
    question: str = Field(
        "question", min_length=1, max_length=256, description="Conditions change this column."
    )
    stop: Stops = Field(default_factory=list, description="Strings that end a completion.")
    scorers: ScorerList = Field(default_factory=_numeric, description="Scorers of jobs that name none.")
    fewshot: FewshotSpec = Field(default_factory=FewshotSpec, description="Examples before the prompt.")
    target_delimiter: str = Field(" ", max_length=100, description="Between an example's prompt and target.")
    fewshot_delimiter: str = Field("\n\n", max_length=100, description="After an example.")


class TaskFile(Spec):
    """A task in a YAML file uploaded through /v1/files."""

    file_id: FileId = Field(description="Id of an upload.")


class TaskPath(Spec):
    """A task in a YAML file on the server, under one of the allowed data roots."""

    path: ServerPath


def _kind(value: Any) -> str:
    if isinstance(value, TaskFile) or (isinstance(value, dict) and "file_id" in value):
        return "file_id"
    if isinstance(value, TaskPath) or (isinstance(value, dict) and "path" in value):
        return "path"
    return "name" if isinstance(value, str) else "inline"


TaskRef = Annotated[
    Annotated[TaskName, Tag("name")]
    | Annotated[TaskFile, Tag("file_id")]
    | Annotated[TaskPath, Tag("path")]
    | Annotated[TaskSpec, Tag("inline")],
    Discriminator(_kind),
]


def task_name(task: Any) -> str | None:
    """The name of a task in results; `task` is the field of a stored job spec."""
    return task.get("name") if isinstance(task, dict) else task
