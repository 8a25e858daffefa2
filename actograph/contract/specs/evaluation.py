"""The evaluation job."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from actograph.contract.scorers import ScorerList
from actograph.contract.specs.capture import CaptureSpec
from actograph.contract.specs.conditions import Condition, Tools, distinct_names
from actograph.contract.specs.datasets import DatasetRef
from actograph.contract.specs.job_base import GeneratingSpec
from actograph.contract.tasks import OWN_EXAMPLES, TaskRef, TaskSpec

ToolForm = Literal["template", "annotations"]
#: default of `max_turns` with `annotations`: an answer has a turn for each of its calculations
ANNOTATION_TURNS = 32


class EvaluationSpec(GeneratingSpec):
    """Run a task on a dataset, score the answers, and store the activations."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "kind": "evaluation",
                    "model": "Qwen/Qwen3-0.6B",
                    "task": "gsm8k",
                    "dataset": {"path": "gsm8k/test.jsonl"},
                    "limit": 100,
                    "sampling": {"temperature": 0.0, "max_tokens": 512},
                    "conditions": [
                        {"name": "baseline"},
                        {"name": "ep02", "suffix": "This is very important to my career."},
                    ],
                    "capture": {"points": ["attn_in", "mlp_in"], "layers": [8, 12, 16]},
                }
            ]
        }
    )

    kind: Literal["evaluation"] = Field(description="Kind of the job.")
    task: TaskRef = Field("gsm8k", description="A task's name, your own task, or a YAML file with one.")
    dataset: DatasetRef = Field(description="Problems to answer.")
    fewshot_dataset: DatasetRef | None = Field(
        None, description="Dataset of the few-shot examples; null takes them from `dataset`."
    )
    limit: int | None = Field(None, ge=1, description="Maximum number of problems; null takes all.")
    offset: int = Field(0, ge=0, description="Number of problems to skip.")
    tools: Tools = Field("none", description="Tools that the model may call; see docs/guides/tools.md.")
    tool_format: ToolForm = Field(
        "template",
        description="Form of tool calls: that of the chat template, or GSM8K's annotations, `<<48/2=`, which "
        "the calculator completes.",
    )
    max_turns: int = Field(
        8,
        ge=1,
        le=64,
        description="Maximum number of turns with tools; max_tokens limits each turn. With annotations the "
        f"default is {ANNOTATION_TURNS}, and max_tokens limits the whole answer.",
    )
    num_fewshot: int = Field(
        0,
        ge=0,
        le=64,
        description="Number of examples; a task with examples of its own shows all by default.",
    )
    apply_chat_template: bool | None = Field(
        None, description="null uses the tokenizer's chat template if there is one."
    )
    fewshot_as_multiturn: bool = Field(
        True, description="True to give few-shot examples as turns of the chat."
    )
    enable_thinking: bool = Field(False, description="Passed to the chat template.")
    scorers: ScorerList | None = Field(
        None,
        description="Names, or objects with parameters; the first gives the verdict. null uses the task's.",
    )
    conditions: Annotated[list[Condition], AfterValidator(distinct_names)] = Field(
        default_factory=lambda: [Condition(name="baseline")],
        min_length=1,
        max_length=64,
        description="Variants on the same problems and seeds.",
    )

    @field_validator("capture")
    @classmethod
    def _answers(cls, value: CaptureSpec | None) -> CaptureSpec | None:
        if value is not None and value.mode == "prefill":
            raise ValueError("mode prefill generates no answers to score; send a capture job")
        return value

    @model_validator(mode="before")
    @classmethod
    def _all_own_examples(cls, value: Any) -> Any:
        """Set the default of `num_fewshot` for tasks with their own examples, as in lm-eval."""
        if not isinstance(value, dict) or "num_fewshot" in value:
            return value
        task = value.get("task")
        if isinstance(task, str):
            own = OWN_EXAMPLES.get(task, 0)
        else:
            fewshot = task.get("fewshot") if isinstance(task, dict) else None
            samples = fewshot.get("samples") if isinstance(fewshot, dict) else None
            own = len(samples) if isinstance(samples, list) else 0
        return {**value, "num_fewshot": own} if own else value

    @model_validator(mode="before")
    @classmethod
    def _turns_of_annotations(cls, value: Any) -> Any:
        """Set the default of `max_turns` for annotations, where each calculation ends a turn."""
        if not isinstance(value, dict) or "max_turns" in value or value.get("tool_format") != "annotations":
            return value
        return {**value, "max_turns": ANNOTATION_TURNS}

    @model_validator(mode="after")
    def _enough_own_examples(self) -> "EvaluationSpec":
        own = self.own_examples
        if own and self.num_fewshot > own:
            raise ValueError(f"num_fewshot {self.num_fewshot}: the task has {own} examples of its own")
        if own and self.fewshot_dataset is not None:
            raise ValueError("the task has its own examples; remove fewshot_dataset")
        return self

    @property
    def own_examples(self) -> int:
        """Number of the task's own few-shot examples; 0 if they come from a dataset."""
        if isinstance(self.task, TaskSpec):
            return len(self.task.fewshot.samples)
        return OWN_EXAMPLES.get(self.task, 0) if isinstance(self.task, str) else 0

    @property
    def uses_tools(self) -> bool:
        """True if a condition has tools."""
        return any(self.tools_of(condition) != "none" for condition in self.conditions)

    def tools_of(self, condition: Condition) -> Tools:
        return condition.tools or self.tools

    @model_validator(mode="after")
    def _fits_its_tools(self) -> "EvaluationSpec":
        if not self.uses_tools:
            for name in ("tool_format", "max_turns"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} needs tools: calculator, in the job or in a condition")
            return self
        if self.apply_chat_template is False and self.tool_format == "template":
            raise ValueError(
                "tools need the chat template: set apply_chat_template to true or null, or use tool_format: "
                "annotations"
            )
        return self
