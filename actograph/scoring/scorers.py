"""Scorers of a job spec, applied to completions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from actograph.contract.errors import InvalidDataset, InvalidRequest
from actograph.contract.job_specs import EvaluationSpec
from actograph.contract.resources import Score
from actograph.contract.tasks import (
    AnyScorer,
    EfficiencyScorer,
    ExactScorer,
    FlexibleExtractScorer,
    IncludesScorer,
    NumericScorer,
    StrictMatchScorer,
    TaskSpec,
)
from actograph.scoring import gsm8k_filters
from actograph.scoring.completions import without_thoughts
from actograph.scoring.final_answer import final_number
from actograph.scoring.numbers import Number, read_number

Form = Literal["gsm8k", "gsm8k_cot"]
#: tasks with answers that end with `The answer is N.`
_COT_TASKS = ("gsm8k_cot", "gsm8k_cot_zeroshot")

#: default scorers of the built-in tasks
GSM8K_SCORERS: tuple[AnyScorer, ...] = (
    StrictMatchScorer(name="strict-match"),
    FlexibleExtractScorer(name="flexible-extract"),
    NumericScorer(name="numeric"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """Input of a scorer."""

    #: text without stop strings
    completion: str
    #: the right answer: a GSM8K answer text (`... #### 72`), a bare number, or a text
    target: str
    generated_tokens: int | None = None


Judge = Callable[[Answered], Score]


class ScorerSet:
    """Scorers in the order of the spec; the first gives the verdict."""

    def __init__(self, scorers: Sequence[AnyScorer], *, form: Form = "gsm8k", max_tokens: int | None = None):
        """`form` and `max_tokens` are the defaults of the task and the job.

        Raises:
            InvalidRequest: an efficiency scorer without a `max_tokens` above its target.
        """
        self._judges: dict[str, Judge] = {
            scorer.key: _judge(scorer, form=form, max_tokens=max_tokens) for scorer in scorers
        }
        self._reads_numbers = any(isinstance(scorer, NumericScorer) for scorer in scorers)

    def score(self, answered: Answered) -> dict[str, Score]:
        """A score for each metric key; `answer` is null if the scorer found no answer.

        Raises:
            InvalidDataset: a scorer needs a number, and the target is not a number.
        """
        return {key: judge(answered) for key, judge in self._judges.items()}

    def check_target(self, target: str) -> None:
        """Raises InvalidDataset if no completion can be right with this target."""
        if self._reads_numbers:
            gold_number(target)
        if not target.strip():
            raise InvalidDataset("the target is empty")


def own_scorers(spec: EvaluationSpec) -> Sequence[AnyScorer]:
    """The job's scorers, or those of its task."""
    if spec.scorers is not None:
        return spec.scorers
    return spec.task.scorers if isinstance(spec.task, TaskSpec) else GSM8K_SCORERS


class JobScoring:
    """Scores a job's samples with their stored inputs."""

    def __init__(self, spec: EvaluationSpec) -> None:
        """Raises InvalidRequest if a scorer does not fit the job."""
        form: Form = "gsm8k_cot" if spec.task in _COT_TASKS else "gsm8k"
        self._scorers = ScorerSet(own_scorers(spec), form=form, max_tokens=spec.sampling.max_tokens)

    def score(
        self, given: Mapping[str, Any], completion: str, generated_tokens: int | None
    ) -> dict[str, Score]:
        """Scores by metric key; see `ScorerSet.score`. `given` is the sample's input."""
        return self._scorers.score(
            Answered(completion=completion, target=given["answer"], generated_tokens=generated_tokens)
        )

    def check(self, given: Mapping[str, Any]) -> None:
        """Raises InvalidDataset if no completion can be right for this row."""
        self._scorers.check_target(given["answer"])


def gold_number(target: str) -> Number:
    """The number of a target: the text after its last `####`, or the whole target.

    Raises:
        InvalidDataset: the text is not a number.
    """
    number = read_number(target.rpartition("####")[2])
    if number is None:
        raise InvalidDataset(
            f"the target {target[-80:]!r} is not a number, which the numeric scorer needs: end it with "
            "`#### N`, make it a bare number, or name other scorers"
        )
    return number


def _judge(scorer: AnyScorer, *, form: Form, max_tokens: int | None) -> Judge:
    match scorer:
        case StrictMatchScorer():
            is_cot = (scorer.form or form) == "gsm8k_cot"
            return _filtered(gsm8k_filters.strict_match_cot if is_cot else gsm8k_filters.strict_match)
        case FlexibleExtractScorer():
            return _filtered(gsm8k_filters.flexible_extract)
        case NumericScorer():
            return _numeric(Fraction(str(scorer.tolerance)))
        case ExactScorer():
            return _exact
        case IncludesScorer():
            return _includes
        case EfficiencyScorer():
            return _efficiency(scorer.target_tokens, scorer.max_tokens or max_tokens)


def _filtered(extract: Callable[[str], str | None]) -> Judge:
    def judge(answered: Answered) -> Score:
        answer = extract(answered.completion)
        return Score(value=float(gsm8k_filters.exact_match(answer, answered.target)), answer=answer)

    return judge


def _numeric(tolerance: Fraction) -> Judge:
    def judge(answered: Answered) -> Score:
        gold = gold_number(answered.target)
        answer = final_number(answered.completion)
        if answer is None:
            return Score(value=0.0)
        rounded = answer.has_decimals or gold.has_decimals
        away = abs(answer.value - gold.value)
        return Score(value=float(away == 0 or (rounded and away <= tolerance)), answer=str(answer))

    return judge


def _efficiency(target: int, most: int | None) -> Judge:
    """1 up to `target` tokens, then a linear decrease to 0 at `most`; the answer is the number of tokens."""
    if most is None or most <= target:
        raise InvalidRequest(
            f"efficiency: target_tokens {target} must be smaller than max_tokens {most}", param="scorers"
        )

    def judge(answered: Answered) -> Score:
        if answered.generated_tokens is None:
            raise InvalidRequest("efficiency needs generated_tokens, the completion's length")
        value = (most - answered.generated_tokens) / (most - target)
        return Score(value=min(1.0, max(0.0, value)), answer=str(answered.generated_tokens))

    return judge


def _plain(text: str) -> str:
    return " ".join(text.split()).removesuffix(".").casefold()


def _exact(answered: Answered) -> Score:
    said = without_thoughts(answered.completion).strip()
    return Score(value=float(bool(said) and _plain(said) == _plain(answered.target)), answer=said or None)


def _includes(answered: Answered) -> Score:
    """Score 1 if the completion contains the target, which is then the answer."""
    target = answered.target.strip()
    found = bool(target) and target.casefold() in without_thoughts(answered.completion).casefold()
    return Score(value=float(found), answer=target if found else None)
