"""Tasks and scorers of evaluations: built-in names, and the format of your own. See docs/guides/tasks.md."""

from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, JsonValue, Tag, model_validator

from actograph.contract.base import FileId, Name, ServerPath, Spec, Stops, example

MAX_SCORERS = 16
ScorerName = Literal[
    "strict-match", "flexible-extract", "numeric", "exact", "includes", "efficiency", "format"
]
SCORER_NAMES = get_args(ScorerName)
_EXACT = ("strict-match", "flexible-extract", "numeric")
#: scorers with keys other than `<name>,none`
_KEYS = {"exact": "exact_match,none"} | {name: f"exact_match,{name}" for name in _EXACT}
#: options of some scorers -> the scorers
_OPTIONS = {
    "form": ("strict-match", "format"),
    "tolerance": ("numeric",),
    "target_tokens": ("efficiency",),
    "max_tokens": ("efficiency",),
}


class Scorer(Spec):
    """A scorer, see docs/guides/tasks.md. With different labels a job can have the same scorer twice."""

    name: ScorerName | Name = Field(description="A built-in scorer, or one of the service's operator.")
    label: Name | None = Field(None, description="Last part of the metric key; null uses the default.")
    form: Literal["gsm8k", "gsm8k_cot"] | None = Field(
        None, description="strict-match, format; null: the task's."
    )
    tolerance: float = Field(0.0, ge=0.0, le=1.0, description="numeric: allowed difference of decimals.")
    target_tokens: int | None = Field(None, ge=1, description="efficiency: most tokens with the value 1.")
    max_tokens: int | None = Field(None, ge=1, description="efficiency: 0 from here; null: the job's.")

    @model_validator(mode="after")
    def _fits(self) -> "Scorer":
        for option, names in _OPTIONS.items():
            if self.name not in names and getattr(self, option):
                raise ValueError(f"{option} is an option of the scorer {' or '.join(names)}")
        if self.name == "efficiency" and self.target_tokens is None:
            raise ValueError("efficiency needs target_tokens")
        if self.max_tokens is not None and self.max_tokens <= (self.target_tokens or 0):
            raise ValueError("max_tokens must be larger than target_tokens")
        return self

    @property
    def key(self) -> str:
        """The metric key in lm-eval's form, `<metric>,<filter>`; the filter may be `none`."""
        metric, _, usual = _KEYS.get(self.name, f"{self.name},none").partition(",")
        return f"{metric},{self.label or usual}"


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _distinct_keys(value: list[Scorer]) -> list[Scorer]:
    keys = [scorer.key for scorer in value]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"two scorers would write {', '.join(twice)}; give one of them a label")
    return value


ScorerSpec = Annotated[Scorer, BeforeValidator(_named, json_schema_input_type=ScorerName | Name | Scorer)]
ScorerList = Annotated[
    list[ScorerSpec], Field(min_length=1, max_length=MAX_SCORERS), AfterValidator(_distinct_keys)
]


class RescoreRequest(Spec):
    """New scorers for a job's completions; the first one gives the verdict."""

    model_config = example(scorers=["numeric", {"name": "efficiency", "target_tokens": 128}])

    scorers: ScorerList


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

Template = Annotated[str, Field(min_length=1, max_length=100_000)]


class FewshotSpec(Spec):
    """The few-shot examples of a task."""

    samples: list[dict[str, JsonValue]] = Field([], max_length=64, description="Shown in this order.")


class TaskSpec(Spec):
    """A task of your own. Templates are Jinja over the columns of a row."""

    name: Name = Field(description="Name in the results.")
    prompt: Template = Field("{{question}}", description="Template of the prompt.")
    target: Template = Field("{{answer}}", description="The right answer, in the form that the scorers need.")
    question: str = Field("question", min_length=1, description="Conditions change this column.")
    stop: Stops = Field([], description="Strings that end a completion.")
    scorers: ScorerList = Field([Scorer(name="numeric")], description="Scorers of jobs that name none.")
    fewshot: FewshotSpec = Field(FewshotSpec(), description="Examples before the prompt.")
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
