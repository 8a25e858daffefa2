"""Samples of one turn, for tests of what follows a generation."""

from actograph.contract.row_selection import Positions
from worker.engine.messages import Generation
from worker.sample.conversation import Conversation
from worker.text.segments import Markup


def one_turn(generation: Generation, markup: Markup) -> Conversation:
    """The finished conversation of a sample with one turn."""
    conversation = Conversation(markup)
    conversation.end(conversation.begin(generation.prompt_ids), generation)
    return conversation


def due_tokens(
    generation: Generation, positions: Positions, markup: Markup, *, tail_only: bool = False
) -> list[int]:
    """Tokens whose rows a hook of this sample must have."""
    return one_turn(generation, markup).due_tokens(positions, tail_only=tail_only)
