"""From scorers named as data to verdicts on a completion."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from actograph.contract.errors import InvalidDataset, InvalidRequest
from actograph.contract.resources import Score
from actograph.contract.scorers import (
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

#: a task's own scorers where nothing else is said
GSM8K_SCORERS: tuple[AnyScorer, ...] = (
    StrictMatchScorer(name="strict-match"),
    FlexibleExtractScorer(name="flexible-extract"),
    NumericScorer(name="numeric"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Answered:
    """Input of a scorer."""

    #: already cut at the stop strings
    completion: str
    #: the right answer: a GSM8K answer text (`... #### 72`), a bare number, or a text
    target: str
    generated_tokens: int | None = None


Judge = Callable[[Answered], Score]


class ScorerSet:
    """Scorers ready to judge, in the order in which they were named; the first is the verdict."""

    def __init__(self, scorers: Sequence[AnyScorer], *, form: Form = "gsm8k", max_tokens: int | None = None):
        """`form` and `max_tokens` stand in where a scorer leaves them to the task and to the job.

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
        """One verdict per metric key; `answer` is what was found, null where nothing was.

        Raises:
            InvalidDataset: the target is no number, and a scorer compares numbers.
        """
        return {key: judge(answered) for key, judge in self._judges.items()}

    def check_target(self, target: str) -> None:
        """Refuse a target with which no completion could ever be right.

        Raises:
            InvalidDataset
        """
        if self._reads_numbers:
            gold_number(target)
        if not target.strip():
            raise InvalidDataset("the target is empty")


def gold_number(target: str) -> Number:
    """The number of a target: what follows its last `####`, or all of it.

    Raises:
        InvalidDataset: it is not one number.
    """
    number = read_number(target.rpartition("####")[2])
    if number is None:
        shown = target if len(target) <= 80 else target[-80:]
        raise InvalidDataset(
            f"the target {shown!r} is not a number, which the numeric scorer needs: "
            "end it with `#### N`, make it a bare number, or name other scorers"
        )
    return number


def numbers_equal(answer: Number, gold: Number, tolerance: Fraction = Fraction(0)) -> bool:
    """Exact equality; a tolerance counts only where one of the two is written with decimals."""
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
            judge_form = format_reward(
                think_required=scorer.think_required, answer_marker=scorer.answer_marker
            )
            return lambda answered: judge_form(answered.completion)
        case EfficiencyScorer():
            most = scorer.max_tokens or max_tokens
            if most is None:
                raise InvalidRequest("efficiency needs max_tokens, where it falls to 0", param="scorers")
            judge_length = efficiency_reward(target_tokens=scorer.target_tokens, max_tokens=most)
            return lambda answered: judge_length(answered.generated_tokens)
        case AnnotationsScorer():
            judge_working = annotation_reward(without=scorer.without)
            return lambda answered: judge_working(answered.completion)


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
    """The answer is the target's own text where it was found."""
    target = answered.target.strip()
    found = bool(target) and target.casefold() in without_thoughts(answered.completion).casefold()
    return Score(value=float(found), answer=target if found else None)
