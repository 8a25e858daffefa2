"""Follows a request's rule while its tokens are generated: which of them it selects."""

from collections.abc import Callable, Sequence

from actograph.contract.row_selection import Selection
from worker.engine.messages import TokenRule
from worker.text.segments import Markup, SegmentFollower


class FollowedRule:
    """Chooses tokens of one request by its rule.

    Args:
        markup: marks of segments, with the rule's annotations.
    """

    def __init__(self, rule: TokenRule, markup: Markup) -> None:
        self._rule, self._markup = rule, markup

    def of_prompt(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        """Selected tokens of the prompt, ascending."""
        return self._rule.prompt

    def of_generation(self, prompt_ids: Sequence[int]) -> Callable[[int, int], bool]:
        """Whether a generated token is selected, by its number in the request and its id; called in order."""
        rule, first = self._rule, len(prompt_ids)
        selection = Selection.of(rule.positions, rule.first_prompt)
        judge = selection.follow()
        if selection.window is not None:  # the others do not count
            names = [name for name, count in rule.before for _ in range(count)]
            for number, name in enumerate(names):
                judge(number, name)
        if selection.segments is None:
            return lambda place, token_id: judge(rule.number + place - first, "")
        follower = SegmentFollower(self._markup, prompt_ids)
        return lambda place, token_id: judge(rule.number + place - first, follower.next(token_id))
