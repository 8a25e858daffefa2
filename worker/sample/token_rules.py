"""Rules: which tokens of one turn `positions` selects, as data for the engine."""

from actograph.contract.row_selection import NamedPositions, Positions, Selection, held_back
from worker.engine.messages import TokenRule
from worker.sample.conversation import Conversation, TurnPrompt
from worker.text.segments import Markup, runs


def captured(positions: Positions) -> Positions:
    """Positions whose rows the engine keeps: of those that count from a late end, all tokens in question."""
    held = held_back(positions)
    return positions if held is None else held[0]


def named(positions: Positions) -> NamedPositions | None:
    """The engine's own name for these positions; None if a rule must select them."""
    match positions:
        case "all" | "prompt" | "generated" | "last" | "last_prompt":
            return positions
    return None


def rule_of(
    positions: Positions,
    conversation: Conversation,
    begun: TurnPrompt,
    markup: Markup,
    *,
    from_place: int = 0,
) -> TokenRule:
    """The selected tokens of one turn of a conversation.

    Numbers and strides count in the sample's sequence of tokens (see `conversation`). `last_prompt` and
    negative numbers count from the end of the first prompt. A token that runs in several turns is one token.

    Args:
        conversation: the finished turns; none before the first turn.
        from_place: earlier places of the prompt are left out.
    """
    first_prompt, numbers = conversation.first_prompt(begun), begun.numbers
    judge = Selection.of(positions, first_prompt).follow()
    names = conversation.names + conversation.prompt_names(begun)[begun.shared :]
    held = [judge(number, name) for number, name in enumerate(names)]
    return TokenRule(
        prompt=tuple(place for place in range(from_place, len(begun.ids)) if held[numbers[place]]),
        positions=positions,
        first_prompt=first_prompt,
        number=begun.number(len(begun.ids)),
        before=tuple((run.name, run.stop - run.start) for run in runs(names)),
        annotations=markup.annotations,
    )
