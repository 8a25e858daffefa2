"""Cache of model structures, read again after a worker has loaded the model.

Every submission needs the structure, and a large one takes milliseconds to read.
"""

from sqlalchemy.orm import Session

from actograph.contract.resources import ModelStructure
from storage.queue import workers


class Structures:
    """At most one structure per served model."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, ModelStructure]] = {}

    def find(self, session: Session, model: str) -> ModelStructure | None:
        """Find the structure of a model; None if no worker has loaded it yet."""
        loaded_at = workers.loaded_at(session, model)
        kept = self._kept.get(model)
        if kept is not None and kept[0] == loaded_at:
            return kept[1]
        found = None if loaded_at is None else workers.structure(session, model)
        if loaded_at is not None and found is not None:
            self._kept[model] = (loaded_at, found)
        return found
