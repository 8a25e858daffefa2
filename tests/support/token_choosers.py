"""Rules of tokens for requests of one turn, as the host makes them."""

from collections.abc import Sequence

from actograph.contract.row_selection import Positions, Selection
from worker.engine.messages import TokenRule


def rule_for(prompt_ids: Sequence[int], positions: Positions) -> TokenRule:
    """The selected tokens of the only turn of a sample."""
    prompt = len(prompt_ids)
    judge = Selection.of(positions, prompt).follow()
    return TokenRule(
        prompt=tuple(place for place in range(prompt) if judge(place, "prompt")),
        positions=positions,
        first_prompt=prompt,
        number=prompt,
        before=(("prompt", prompt),),
    )
