"""The served models: their names and structures."""

from sqlalchemy.orm import Session

from actograph.contract.errors import UnknownModel
from actograph.contract.models import ModelStructure, ServedModel, parse_served
from actograph.settings import Settings
from storage.queue import workers


class ServedModels:
    """The default model, then the other allowed models. The first model with a name keeps it."""

    def __init__(self, settings: Settings) -> None:
        self._models: dict[str, ServedModel] = {}
        self._by_alias: dict[str, ServedModel] = {}
        for text in (settings.model, *settings.allowed_models):
            if not text:
                continue
            model = parse_served(text)
            self._models.setdefault(model.name, model)
            for alias in (model.name, *sorted(model.aliases)):
                self._by_alias.setdefault(alias, self._models[model.name])

        #: canonical names, the default model first
        self.names = list(self._models)

    def find(self, name: str) -> str | None:
        """Find the canonical name of a served model by name or alias."""
        model = self._by_alias.get(name)
        return model.name if model else None

    def require(self, name: str, param: str = "model") -> str:
        """Like `find`. Raises UnknownModel if the model is not served; `param` is the field at fault."""
        found = self.find(name)
        if found is None:
            served = ", ".join(self._models) or "none (set ACTOGRAPH_MODEL)"
            raise UnknownModel(f"model {name[:200]!r} is not served here; served: {served}", param=param)
        return found


class Structures:
    """Structures of models, read again after a worker has loaded the model.

    Every submission needs one, and a large one takes milliseconds to read.
    """

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
