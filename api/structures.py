"""The structures of the models, read again only when a worker has loaded a model since.

One of a large model takes milliseconds to read and check, and every submission asks for it.
"""

from sqlalchemy.orm import Session

from actograph.contract.resources import ModelStructure
from storage.queue import workers


class Structures:
    """Kept for the life of the process: one for each served model at most."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float, ModelStructure]] = {}

    def find(self, session: Session, model: str) -> ModelStructure | None:
        """The structure of a model that some worker has loaded at least once."""
        return self.of(session, model, workers.loaded_at(session, model))

    def of(self, session: Session, model: str, loaded_at: float | None) -> ModelStructure | None:
        """The same, where the caller knows when a worker last loaded the model; None: never."""
        if loaded_at is None:
            return None
        kept = self._kept.get(model)
        if kept is not None and kept[0] == loaded_at:
            return kept[1]
        found = workers.structure(session, model)
        if found is not None:
            self._kept[model] = (loaded_at, found)
        return found
