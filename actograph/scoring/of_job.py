"""The scorers of an evaluation job: its own, or those of its task."""

from collections.abc import Mapping, Sequence
from typing import Any

from actograph.contract.resources import Score
from actograph.contract.scorers import AnyScorer
from actograph.contract.specs import EvaluationSpec
from actograph.contract.tasks import TaskSpec
from actograph.scoring.scorers import GSM8K_SCORERS, Answered, Form, ScorerSet

#: tasks whose answers end with `The answer is N.`
COT_TASKS = ("gsm8k_cot", "gsm8k_cot_zeroshot")


class JobScoring:
    """Judges a job's samples by their stored inputs."""

    def __init__(self, spec: EvaluationSpec) -> None:
        """Raises InvalidRequest where a scorer does not fit the job."""
        form: Form = "gsm8k_cot" if spec.task in COT_TASKS else "gsm8k"
        self._scorers = ScorerSet(own_scorers(spec), form=form, max_tokens=spec.sampling.max_tokens)

    def score(
        self, given: Mapping[str, Any], completion: str, generated_tokens: int | None
    ) -> dict[str, Score]:
        """Verdicts by metric key; `given` is the sample's input.

        Raises:
            InvalidDataset: the row's target is none that these scorers can use.
        """
        return self._scorers.score(
            Answered(completion=completion, target=given["answer"], generated_tokens=generated_tokens)
        )

    def check(self, given: Mapping[str, Any]) -> None:
        """Raises InvalidDataset where no completion could answer this row rightly."""
        self._scorers.check_target(given["answer"])


def own_scorers(spec: EvaluationSpec) -> Sequence[AnyScorer]:
    """The scorers that a job has, whether it names them or not."""
    if spec.scorers is not None:
        return spec.scorers
    return spec.task.scorers if isinstance(spec.task, TaskSpec) else GSM8K_SCORERS
