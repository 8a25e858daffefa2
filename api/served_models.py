"""The served models: their names and structures."""

from sqlalchemy.orm import Session

from actograph.contract.errors import UnknownModel
from actograph.contract.models import ModelStructure, ServedModel, parse_served, with_adapter
from actograph.settings import Settings
from storage.queue import workers


class ServedModels:
    """The default model, then the other allowed models. The first model with a name keeps it."""

    def __init__(self, settings: Settings) -> None:
        self._names: dict[str, str] = {}
        models = [parse_served(text) for text in (settings.model, *settings.allowed_models) if text]
        for model in models:
            for alias in (model.name, *sorted(model.aliases)):
                self._names.setdefault(alias, model.name)
        for model in models:  # `demo+sad` for NAME=BASE+ADAPTER, where the base is served as `demo` too
            for base in models if model.adapter is not None else ():
                if base.adapter is None and base.source == model.source:
                    for adapter in (model.adapter, model.name):
                        self._names.setdefault(with_adapter(base.name, str(adapter)), model.name)
        self._served = {model.name: model for model in reversed(models)}
        #: canonical names, the default model first
        self.names = list(dict.fromkeys(model.name for model in models))

    def served(self, name: str) -> ServedModel:
        """The model of a canonical name."""
        return self._served[name]

    def find(self, name: str) -> str | None:
        """Find the canonical name of a served model by name, by alias, or by the last part of one's id."""
        found = self._ending_with(name)
        return self._names.get(name) or (found[0] if len(found) == 1 else None)

    def _ending_with(self, name: str) -> list[str]:
        """Canonical names of the models whose id ends with this part."""
        ends = f"/{name}"
        return list(dict.fromkeys(model for alias, model in self._names.items() if alias.endswith(ends)))

    def require(self, name: str, param: str = "model") -> str:
        """Like `find`. Raises UnknownModel if the model is not served; `param` is the field at fault."""
        found = self.find(name)
        if found is None and (several := self._ending_with(name)):
            message = f"several models have the short name {name[:200]!r}: {', '.join(several)}; say which"
            raise UnknownModel(message, param=param)
        if found is None:
            served = ", ".join(self.names) or "none (set ACTOGRAPH_MODEL)"
            raise UnknownModel(f"model {name[:200]!r} is not served here; served: {served}", param=param)
        return found


class Structures:
    """Structures of models, read again after a worker has loaded the model.

    Every submission needs one, and a large one takes milliseconds to read.
    """

    def __init__(self) -> None:
        self._kept: dict[str, tuple[float | None, ModelStructure | None]] = {}

    def find(self, session: Session, model: str) -> ModelStructure | None:
        """Find the structure of a model; None if no worker has loaded it yet."""
        loaded_at = workers.loaded_at(session, model)
        kept_at, kept = self._kept.get(model, (None, None))
        if kept_at != loaded_at:
            kept = workers.structure(session, model)
            self._kept[model] = (loaded_at, kept)
        return kept
