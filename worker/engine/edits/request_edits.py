"""From the edits that requests ask for to what makes them in a batch."""

from collections.abc import Callable, Sequence

from worker.engine.edits.interventions import Editor
from worker.engine.model.loaded import LoadedModel
from worker.engine.requests import Edit, GenerationRequest


def _every(edit: Edit) -> bool:
    return True


def editor_of(
    model: LoadedModel,
    requests: Sequence[GenerationRequest],
    *,
    edited_at: Callable[[str], str],
    flat: frozenset[str],
    generated_ids: Sequence[Sequence[int]] | None = None,
    head: str | None = None,
    belongs: Callable[[Edit], bool] = _every,
) -> Editor | None:
    """What makes the requests' edits in one batch; None where nothing is to be changed.

    Args:
        edited_at: hook -> the first location that shows its tensor.
        flat, generated_ids, head: as `Editor` has them; without `generated_ids` nothing will be generated.
        belongs: which edits are meant.
    """
    edits = [
        [edit for edit in request.edits if not edit.changes_nothing and belongs(edit)] for request in requests
    ]
    if not any(edits):
        return None
    return Editor(
        model.lm,
        edits,
        location_of={edit.hook: edited_at(edit.hook) for own in edits for edit in own},
        flat=flat,
        prompt_ids=[request.prompt_ids for request in requests],
        generated_ids=[()] * len(requests) if generated_ids is None else generated_ids,
        head=head,
    )
