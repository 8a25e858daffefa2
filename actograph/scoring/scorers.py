"""Scorers of a job spec, applied to completions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from actograph.contract.errors import InvalidDataset, InvalidRequest
from actograph.contract.resources import Score
from actograph.contract.tasks import (
    AnnotationsScorer,
    AnyScorer,
    EfficiencyScorer,
    ExactScorer,
    FlexibleExtractScorer,
    FormatScorer,
    IncludesScorer,
    NumericScorer,
    StrictMatchScorer,
)
from actograph.scoring import gsm8k_filters
from actograph.scoring.completions import without_thoughts
from actograph.scoring.final_answer import final_number
from actograph.scoring.numbers import Number, read_number
from actograph.scoring.rewards import annotation_reward, efficiency_reward, format_reward

Form = Literal["gsm8k", "gsm8k_cot"]

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

    @property
    def keys(self) -> list[str]:
        return list(self._judges)

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


def gold_number(target: str) -> Number:
    """The number of a target: the text after its last `####`, or the whole target.

    Raises:
        InvalidDataset: the text is not a number.
    """
    number = read_number(target.rpartition("####")[2])
    if number is None:
        shown = target if len(target) <= 80 else target[-80:]
        raise InvalidDataset(
            f"the target {shown!r} is not a number, which the numeric scorer needs: end it with `#### N`, "
            "make it a bare number, or name other scorers"
        )
    return number


def numbers_equal(answer: Number, gold: Number, tolerance: Fraction = Fraction(0)) -> bool:
    """True if the numbers are equal; a tolerance only applies if one of them has decimals."""
    if answer.value == gold.value:
        return True
    rounded = answer.has_decimals or gold.has_decimals
    return rounded and abs(answer.value - gold.value) <= tolerance


def _judge(scorer: AnyScorer, *, form: Form, max_tokens: int | None) -> Judge:
    match scorer:
        case StrictMatchScorer():
            own = scorer.form or form
            extract = gsm8k_filters.strict_match_cot if own == "gsm8k_cot" else gsm8k_filters.strict_match
            return _filtered(extract)
        case FlexibleExtractScorer():
            return _filtered(gsm8k_filters.flexible_extract)
        case NumericScorer():
            return _numeric(Fraction(str(scorer.tolerance)))
        case ExactScorer():
            return _exact
        case IncludesScorer():
            return _includes
        case FormatScorer():
            return lambda answered: format_reward(
                answered.completion,
                think_required=scorer.think_required,
                answer_marker=scorer.answer_marker,
            )
        case EfficiencyScorer():
            target, most = scorer.target_tokens, scorer.max_tokens or max_tokens
            if most is None:
                raise InvalidRequest("efficiency needs max_tokens, where it falls to 0", param="scorers")
            if most <= target:
                raise InvalidRequest(
                    f"efficiency: target_tokens {target} must be smaller than max_tokens {most}",
                    param="scorers",
                )
            return lambda answered: efficiency_reward(
                answered.generated_tokens, target_tokens=target, max_tokens=most
            )
        case AnnotationsScorer():
            return lambda answered: annotation_reward(answered.completion, without=scorer.without)


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
        return Score(value=float(numbers_equal(answer, gold, tolerance)), answer=str(answer))

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
