"""Scoring of an evaluation job."""

from collections.abc import Mapping, Sequence
from typing import Any

from actograph.contract.job_specs import EvaluationSpec
from actograph.contract.resources import Score
from actograph.contract.tasks import AnyScorer, TaskSpec
from actograph.scoring.scorers import GSM8K_SCORERS, Answered, Form, ScorerSet

#: tasks with answers that end with `The answer is N.`
COT_TASKS = ("gsm8k_cot", "gsm8k_cot_zeroshot")


class JobScoring:
    """Scores a job's samples with their stored inputs."""

    def __init__(self, spec: EvaluationSpec) -> None:
        """Raises InvalidRequest if a scorer does not fit the job."""
        form: Form = "gsm8k_cot" if spec.task in COT_TASKS else "gsm8k"
        self._scorers = ScorerSet(own_scorers(spec), form=form, max_tokens=spec.sampling.max_tokens)

    def score(
        self, given: Mapping[str, Any], completion: str, generated_tokens: int | None
    ) -> dict[str, Score]:
        """Scores by metric key; `given` is the sample's input.

        Raises:
            InvalidDataset: the scorers cannot use the row's target.
        """
        return self._scorers.score(
            Answered(completion=completion, target=given["answer"], generated_tokens=generated_tokens)
        )

    def check(self, given: Mapping[str, Any]) -> None:
        """Raises InvalidDataset if no completion can be right for this row."""
        self._scorers.check_target(given["answer"])


def own_scorers(spec: EvaluationSpec) -> Sequence[AnyScorer]:
    """The job's scorers, or those of its task."""
    if spec.scorers is not None:
        return spec.scorers
    return spec.task.scorers if isinstance(spec.task, TaskSpec) else GSM8K_SCORERS
