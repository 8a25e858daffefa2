"""Scores of format, length and working, from 0 to 1."""

from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import Score
from actograph.scoring.calculator import annotations
from actograph.scoring.completions import CLOSE, OPEN, without_thoughts

MAX_ANSWER_CHARS = 200


def format_reward(completion: str, *, think_required: bool, answer_marker: str | None) -> Score:
    """Score the format of a completion: the share of correct required parts.

    The think block is correct if there is exactly one, with text, at the start. Its opening tag may be
    missing, since chat templates write it. The answer marker is correct if it occurs exactly once outside of
    thoughts, followed by text on its line. That text is the score's answer.
    """
    parts: list[bool] = [_thinks_first(completion)] if think_required else []
    said = without_thoughts(completion)
    if answer_marker is not None:
        _, *after = said.split(answer_marker)
        line = after[0].partition("\n")[0] if len(after) == 1 else ""
        answer = line.strip()[:MAX_ANSWER_CHARS] or None
        parts.append(answer is not None)
    else:
        answer = said.strip()[:MAX_ANSWER_CHARS] or None
    return Score(value=sum(parts) / len(parts), answer=answer)


def annotation_reward(completion: str, *, without: float) -> Score:
    """Score the calculator annotations of a completion: the share of correct results.

    Stated results may be rounded to their decimals. Expressions that cannot be calculated (`<<x*2=6>>`) are
    wrong. The score's answer is `right/all`, such as `3/4`.

    Args:
        without: value of a completion without annotations.
    """
    found = annotations(completion)
    if not found:
        return Score(value=without)
    right = sum(one.right for one in found)
    return Score(value=right / len(found), answer=f"{right}/{len(found)}")


def efficiency_reward(generated_tokens: int | None, *, target_tokens: int, max_tokens: int) -> Score:
    """Score the length of a completion in generated tokens.

    The value is 1 up to `target_tokens`, and then decreases linearly to 0 at `max_tokens`. The score's answer
    is the number of tokens.

    Raises:
        InvalidRequest: the length is unknown.
    """
    if generated_tokens is None:
        raise InvalidRequest("efficiency needs generated_tokens, the completion's length")
    value = (max_tokens - generated_tokens) / (max_tokens - target_tokens)
    return Score(value=min(1.0, max(0.0, value)), answer=str(generated_tokens))


def _thinks_first(completion: str) -> bool:
    text = completion.lstrip().removeprefix(OPEN)
    thought, closing, after = text.partition(CLOSE)
    return bool(closing and thought.strip()) and not any(tag in thought + after for tag in (OPEN, CLOSE))
