"""Tasks: the names of built-in tasks, and the format of your own. See docs/guides/tasks.md."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, JsonValue, Tag

from actograph.contract.base import Name, Spec
from actograph.contract.scorers import AnyScorer, NumericScorer, ScorerList

MAX_TEMPLATE_CHARS = 100_000
MAX_EXAMPLES = 64

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
Stop = Annotated[str, Field(min_length=1, max_length=1000)]


class FewshotSpec(Spec):
    """The few-shot examples of a task."""

    samples: list[dict[str, JsonValue]] = Field(
        default_factory=list,
        max_length=MAX_EXAMPLES,
        description="The task's own examples, shown in this order; an empty list draws them from a dataset.",
    )


def _numeric() -> list[AnyScorer]:
    return [NumericScorer(name="numeric")]


class TaskSpec(Spec):
    """A task of your own. Templates are Jinja over the columns of a row."""

    name: Name = Field(description="Name in the results.")
    prompt: Template = Field("{{question}}", description="Template of the prompt.")
    target: Template = Field(
        "{{answer}}", description="Template of the right answer, in the form that the scorers need."
    )
    question: str = Field(
        "question",
        min_length=1,
        max_length=256,
        description="Column to which conditions add their prefix and suffix.",
    )
    stop: list[Stop] = Field(
        default_factory=list, max_length=16, description="Strings that end a completion."
    )
    scorers: ScorerList = Field(default_factory=_numeric, description="Scorers of jobs that name none.")
    fewshot: FewshotSpec = Field(default_factory=FewshotSpec, description="Examples before the prompt.")
    target_delimiter: str = Field(
        " ", max_length=100, description="Text between an example's prompt and its target."
    )
    fewshot_delimiter: str = Field("\n\n", max_length=100, description="Text after an example.")


class TaskFile(Spec):
    """A task in a YAML file uploaded through /v1/files."""

    file_id: str = Field(pattern=r"^file_[0-9a-f]{32}$", description="Id of the upload.")


class TaskPath(Spec):
    """A task in a YAML file on the server, under one of the allowed data roots."""

    path: str = Field(min_length=1, max_length=4096, description="Path below a data root.")


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
