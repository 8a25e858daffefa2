"""Tokens of one request that are kept or changed: by name, by number, or by a rule."""

from collections.abc import Callable, Sequence

from actograph.contract.row_selection import NamedPositions, Selection, TokenRange
from worker.engine.messages import TokenRule
from worker.text.segments import Markup, SegmentFollower


class FollowedRule:
    """Answers of a rule for one request, however often they are asked for.

    Args:
        markup_of: marks of segments, with annotations or without; asked for if segments decide.
        generated: live view of the request's generated ids.

    Attributes:
        in_prompt: selected places of the prompt, ascending.
    """

    def __init__(
        self,
        rule: TokenRule,
        markup_of: Callable[[bool], Markup],
        prompt_ids: Sequence[int],
        generated: Sequence[int],
    ) -> None:
        self.in_prompt = rule.prompt
        self._generated = generated
        self._judge = _judge(rule, markup_of, prompt_ids)
        self._answers: list[bool] = []

    def holds(self, number: int) -> bool:
        """Whether generated token `number` (the first is 0) is selected; False if it does not exist yet."""
        for place in range(len(self._answers), min(number + 1, len(self._generated))):
            self._answers.append(self._judge(place, self._generated[place]))
        return number < len(self._answers) and self._answers[number]


def _judge(
    rule: TokenRule, markup_of: Callable[[bool], Markup], prompt_ids: Sequence[int]
) -> Callable[[int, int], bool]:
    """Whether a generated token is selected, by its number in the request and its id; called in order."""
    selection = Selection.of(rule.positions, rule.first_prompt)
    judge = selection.follow()
    if selection.window is not None:  # the others do not count
        names = [name for name, count in rule.before for _ in range(count)]
        for number, name in enumerate(names):
            judge(number, name)
    if selection.segments is None:
        return lambda place, token_id: judge(rule.number + place, "")
    follower = SegmentFollower(markup_of(rule.annotations), prompt_ids)
    return lambda place, token_id: judge(rule.number + place, follower.next(token_id))


class ChosenTokens:
    """Selection of one request's tokens: rows to keep, or rows to change.

    Args:
        rule: decides instead of `positions`.

    Attributes:
        newest_only: of rows to keep, only the newest one counts.
        scattered: rows need not be consecutive; they are chosen by a rule.
    """

    def __init__(
        self, positions: NamedPositions | TokenRange, rule: FollowedRule | None, prompt_tokens: int
    ) -> None:
        self._prompt, self._positions, self._rule = prompt_tokens, positions, rule
        self._selection = Selection.of(positions, prompt_tokens)
        self.newest_only = rule is None and self._selection.last_only
        self.scattered = rule is not None

    def of(self, start: int, stop: int) -> Sequence[int]:
        """Chosen tokens among `start` to `stop - 1`, whose ids exist; the same answer however often."""
        prompt = self._prompt
        if self._rule is not None:
            early = [token for token in self._rule.in_prompt if start <= token < stop]
            return early + [t for t in range(max(start, prompt), stop) if self._rule.holds(t - prompt)]
        if self._selection.last_only:
            return range(max(start, prompt - 1), stop)
        if self._positions == "prompt":
            return range(start, min(stop, prompt))
        if self._positions == "generated":
            return range(max(start, prompt), stop)
        return self._selection.rows(start, prompt, stop)
