"""Scorers of a job spec, applied to completions."""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from pydantic import ValidationError

from actograph.contract.errors import FunctionFailed, InvalidDataset, InvalidRequest
from actograph.contract.job_specs import EvaluationSpec
from actograph.contract.resources import Score
from actograph.contract.tasks import SCORER_NAMES, Scorer, TaskSpec
from evals.scoring import gsm8k_filters
from evals.scoring.completions import without_thoughts
from evals.scoring.final_answer import final_number
from evals.scoring.numbers import Number, read_number
from evals.user_functions.functions import UserFunctions

#: tasks with answers that end with `The answer is N.`
_COT_TASKS = ("gsm8k_cot", "gsm8k_cot_zeroshot")

#: default scorers of the built-in tasks
GSM8K_SCORERS = (Scorer(name="strict-match"), Scorer(name="flexible-extract"), Scorer(name="numeric"))


class Answer(NamedTuple):
    """An answer to a problem, for scorers.

    Attributes:
        completion: text without stop strings.
        target: the right answer: a GSM8K answer text (`... #### 72`), a bare number, or a text.
        tokens: length of the completion.
    """

    completion: str
    target: str
    tokens: int | None = None
    question: str = ""


Judge = Callable[[Answer], Score]


class ScorerSet:
    """Scorers in the order of the spec; the first gives the verdict."""

    def __init__(
        self,
        scorers: Sequence[Scorer],
        *,
        form: str = "gsm8k",
        max_tokens: int | None = None,
        own: UserFunctions | None = None,
    ):
        """`form` and `max_tokens` are the defaults of the task and the job, `own` the operator's scorers.

        Raises:
            InvalidRequest: an unknown scorer, or efficiency without a `max_tokens` above its target.
        """
        self._judges: dict[str, Judge] = {}
        for scorer in scorers:
            if scorer.name in SCORER_NAMES:
                judge = _judge(scorer, form=form, max_tokens=max_tokens)
            else:
                judge = _own_judge(scorer.name, own)
            self._judges[scorer.key] = judge
        self._reads_numbers = any(scorer.name == "numeric" for scorer in scorers)

    @classmethod
    def of(cls, spec: EvaluationSpec, own: UserFunctions | None = None) -> "ScorerSet":
        """The scorers of a job. Raises InvalidRequest if one is unknown or does not fit it."""
        form = "gsm8k_cot" if spec.task in _COT_TASKS else "gsm8k"
        return cls(own_scorers(spec), form=form, max_tokens=spec.sampling.max_tokens, own=own)

    def score(self, answer: Answer) -> dict[str, Score]:
        """A score for each metric key; its `answer` is null if the scorer found none.

        Raises:
            InvalidDataset: a scorer needs a number, and the target is not a number.
            FunctionFailed: a scorer of the operator gave no score.
        """
        return {key: judge(answer) for key, judge in self._judges.items()}

    def check_target(self, target: str) -> None:
        """Raises InvalidDataset if no completion can be right with this target."""
        if self._reads_numbers:
            gold_number(target)
        if not target.strip():
            raise InvalidDataset("the target is empty")


def own_scorers(spec: EvaluationSpec) -> Sequence[Scorer]:
    """The job's scorers, or those of its task."""
    if spec.scorers is not None:
        return spec.scorers
    return spec.task.scorers if isinstance(spec.task, TaskSpec) else GSM8K_SCORERS


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


def _judge(scorer: Scorer, *, form: str, max_tokens: int | None) -> Judge:
    is_cot = (scorer.form or form) == "gsm8k_cot"
    strict = gsm8k_filters.strict_match_cot if is_cot else gsm8k_filters.strict_match
    match scorer.name:
        case "strict-match":
            return _filtered(strict)
        case "format":
            return _has_form(strict)
        case "flexible-extract":
            return _filtered(gsm8k_filters.flexible_extract)
        case "numeric":
            return _numeric(Fraction(str(scorer.tolerance)))
        case "exact":
            return _exact
        case "includes":
            return _includes
        case _:
            return _efficiency(scorer.target_tokens or 1, scorer.max_tokens or max_tokens)


def _filtered(extract: Callable[[str], str | None]) -> Judge:
    def judge(given: Answer) -> Score:
        answer = extract(given.completion)
        return Score(value=float(gsm8k_filters.exact_match(answer, given.target)), answer=answer)

    return judge


def _has_form(extract: Callable[[str], str | None]) -> Judge:
    """Score 1 if the completion has an answer in the asked form, right or wrong."""

    def judge(given: Answer) -> Score:
        answer = extract(given.completion)
        return Score(value=float(answer is not None), answer=answer)

    return judge


def _numeric(tolerance: Fraction) -> Judge:
    def judge(given: Answer) -> Score:
        gold = gold_number(given.target)
        answer = final_number(given.completion)
        if answer is None:
            return Score(value=0.0)
        rounded = answer.has_decimals or gold.has_decimals
        away = abs(answer.value - gold.value)
        return Score(value=float(away == 0 or (rounded and away <= tolerance)), answer=str(answer))

    return judge


def _efficiency(fewest: int, most: int | None) -> Judge:
    """1 up to `fewest` tokens, then a linear decrease to 0 at `most`; the answer is the number of tokens."""
    if most is None or most <= fewest:
        raise InvalidRequest(
            f"efficiency: target_tokens {fewest} must be smaller than max_tokens {most}", param="scorers"
        )

    def judge(given: Answer) -> Score:
        tokens = given.tokens
        if tokens is None:
            raise InvalidRequest("efficiency needs generated_tokens, the completion's length")
        return Score(value=min(1.0, max(0.0, (most - tokens) / (most - fewest))), answer=str(tokens))

    return judge


def _plain(text: str) -> str:
    return " ".join(text.split()).removesuffix(".").casefold()


def _exact(given: Answer) -> Score:
    """Score 1 if both texts are equal, ignoring case, white space and a final full stop."""
    said = without_thoughts(given.completion).strip()
    return Score(value=float(bool(said) and _plain(said) == _plain(given.target)), answer=said or None)


def _includes(given: Answer) -> Score:
    """Score 1 if the completion contains the target, which is then the answer."""
    target = given.target.strip()
    found = bool(target) and target.casefold() in without_thoughts(given.completion).casefold()
    return Score(value=float(found), answer=target if found else None)


def _own_judge(name: str, own: UserFunctions | None) -> Judge:
    """A scorer of the operator: `function(completion, target, question)`, see docs/guides/tasks.md."""
    if own is None or name not in own.names:
        known = ", ".join([*SCORER_NAMES, *(own.names if own is not None else ())])
        raise InvalidRequest(f"there is no scorer {name!r}; the scorers are {known}", param="scorers")

    def judge(given: Answer) -> Score:
        asked = {"completion": given.completion, "target": given.target, "question": given.question}
        found: Any = own.call(name, asked)
        fields = found if isinstance(found, Mapping) else {"value": found}
        try:
            return Score.model_validate(fields)
        except ValidationError:
            raise FunctionFailed(
                f"{name} returned {str(found)[:80]}; a scorer returns a number, a truth "
                "value, or value and answer"
            ) from None

    return judge
