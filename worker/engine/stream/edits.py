"""Interventions of one request: which of its tokens each edit changes."""

from collections.abc import Sequence

from worker.engine.capture.parts import Write
from worker.engine.capture.selection import ChosenTokens
from worker.engine.edits import change_of
from worker.engine.locations import ModelHooks
from worker.engine.requests import GenerationRequest


class RowEdits:
    """Edits of one request, in the order in which they apply.

    Args:
        generated: live view of its generated ids, for choosers.
    """

    def __init__(self, request: GenerationRequest, hooks: ModelHooks, generated: Sequence[int]) -> None:
        self._edits = [
            (
                Write(hooks.edited_at(edit.hook), (place, edit.kind), change_of(edit), ()),
                ChosenTokens(edit.positions, edit.chooser, request.prompt_ids, generated),
            )
            for place, edit in enumerate(request.edits)
            if not edit.changes_nothing
        ]

    def __bool__(self) -> bool:
        return bool(self._edits)

    def writes(self, start: int, stop: int) -> list[Write]:
        """Changes of tokens `start` to `stop - 1`."""
        made = [write._replace(tokens=chosen.of(start, stop)) for write, chosen in self._edits]
        return [write for write in made if write.tokens]
