"""A real engine, some of whose calls a test replaces."""

from typing import Any

from worker.engine.engine import Engine


class EngineDouble:
    """Passes everything on to a real engine. Tests replace calls of the traced engine, so nothing streams."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        refusal = {"streaming": False, "streaming_refusal": "it is a double"}
        self.structure = engine.structure.model_copy(update=refusal)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)
