"""Verdicts on form, length and working rather than on the answer: values from 0 to 1, made by factories."""

import re
from collections.abc import Callable

from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import Score
from actograph.scoring.calculator import annotations
from actograph.scoring.completions import CLOSE, OPEN, without_thoughts

MAX_ANSWER_CHARS = 200


def format_reward(
    *, think_required: bool = False, answer_marker: str | None = "####"
) -> Callable[[str], Score]:
    """Scores the format of a completion: the share of correct required parts.

    The think block is correct if there is exactly one, with text, at the start. Its opening tag may be
    missing, since chat templates write it. The answer marker is correct if it occurs exactly once outside of
    thoughts, followed by text on its line. That text is the score's answer.
    """
    marker = re.compile(re.escape(answer_marker)) if answer_marker is not None else None

    def judge(completion: str) -> Score:
        parts: list[bool] = []
        answer = None
        if think_required:
            parts.append(_thinks_first(completion))
        if marker is not None:
            said = without_thoughts(completion)
            places = [match.end() for match in marker.finditer(said)]
            if len(places) == 1:
                line = said[places[0] :].partition("\n")[0].strip()
                answer = line[:MAX_ANSWER_CHARS] or None
            parts.append(answer is not None)
        else:
            answer = without_thoughts(completion).strip()[:MAX_ANSWER_CHARS] or None
        return Score(value=sum(parts) / len(parts), answer=answer)

    return judge


def annotation_reward(*, without: float = 0.0) -> Callable[[str], Score]:
    """Scores the calculator annotations of a completion: the share of correct results.

    Stated results may be rounded to their decimals. Expressions that cannot be calculated (`<<x*2=6>>`) are
    wrong. The score's answer is `right/all`, such as `3/4`.

    Args:
        without: value of a completion without annotations.
    """

    def judge(completion: str) -> Score:
        found = annotations(completion)
        if not found:
            return Score(value=without)
        right = sum(one.right for one in found)
        return Score(value=right / len(found), answer=f"{right}/{len(found)}")

    return judge


def _thinks_first(completion: str) -> bool:
    text = completion.lstrip().removeprefix(OPEN)
    thought, closing, after = text.partition(CLOSE)
    return bool(closing and thought.strip()) and not any(tag in thought + after for tag in (OPEN, CLOSE))


def efficiency_reward(*, target_tokens: int, max_tokens: int) -> Callable[[int | None], Score]:
    """Scores the length of a completion in generated tokens.

    The value is 1 up to `target_tokens`, and then decreases linearly to 0 at `max_tokens`. The score's answer
    is the number of tokens.

    Raises:
        InvalidRequest: `max_tokens` is not larger, or (during scoring) the length is unknown.
    """
    if max_tokens <= target_tokens:
        raise InvalidRequest(
            f"efficiency: target_tokens {target_tokens} must be smaller than max_tokens {max_tokens}",
            param="scorers",
        )

    def judge(generated_tokens: int | None) -> Score:
        if generated_tokens is None:
            raise InvalidRequest("efficiency needs generated_tokens, the completion's length")
        value = (max_tokens - generated_tokens) / (max_tokens - target_tokens)
        return Score(value=min(1.0, max(0.0, value)), answer=str(generated_tokens))

    return judge
