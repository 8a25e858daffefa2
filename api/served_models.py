"""Which models this service serves, and the names under which a client may ask for them."""

from collections.abc import Sequence

from actograph.contract.errors import UnknownModel
from actograph.contract.models import model_names
from actograph.contract.models.model_names import ServedModel
from actograph.settings import Settings


class ServedModels:
    """The model of the settings, then the further allowed ones; the first to claim a name has it."""

    def __init__(self, settings: Settings) -> None:
        self._models: dict[str, ServedModel] = {}
        self._by_alias: dict[str, ServedModel] = {}
        for text in (settings.model, *settings.allowed_models):
            if not text:
                continue
            model = model_names.parse(text)
            self._models.setdefault(model.name, model)
            for alias in (model.name, *sorted(model.aliases)):
                self._by_alias.setdefault(alias, self._models[model.name])

    @property
    def names(self) -> Sequence[str]:
        """Canonical names, the default model first."""
        return list(self._models)

    @property
    def default(self) -> str | None:
        return next(iter(self._models), None)

    def find(self, name: str) -> str | None:
        """The canonical name of the model that `name` asks for, if one is served."""
        model = self._by_alias.get(name)
        return model.name if model else None

    def require(self, name: str) -> str:
        """The canonical name of the model that `name` asks for.

        Raises:
            UnknownModel: none is served under this name; the message lists those that are.
        """
        found = self.find(name)
        if found is None:
            served = ", ".join(self._models) or "none (set ACTOGRAPH_MODEL)"
            raise UnknownModel(f"model {name!r} is not served here; served: {served}", param="model")
        return found
