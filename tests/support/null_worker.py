"""A worker with an engine that generates nothing (tests/support/null_engine.py).

    python -m tests.support.null_worker

Everything but the engine is the real worker: Celery, the drain, leases, the index.
"""

import sys
from collections.abc import Callable

import worker.process.host
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.models import ModelStructure, parse_served
from actograph.settings import Settings
from tests.support.null_engine import NullEngine
from worker.__main__ import main


class NullHolder:
    """Holds the null engine under the name that the settings give the model."""

    options = ModelLoadOptions()

    def __init__(
        self,
        settings: Settings,
        on_loaded: Callable[[ModelStructure], None],
        _options_of: Callable[[str], ModelLoadOptions],
    ) -> None:
        self._name = parse_served(settings.model).name
        self._on_loaded = on_loaded
        self.engine: NullEngine | None = None
        self.loads = 0
        self.before_unload: Callable[[], None] = lambda: None

    def engine_for(self, _name: str) -> NullEngine:
        if self.engine is None:
            self.engine = NullEngine(self._name)
            self.loads += 1
            self._on_loaded(self.engine.structure)
        return self.engine

    def holds(self, _name: str) -> bool:
        return self.engine is not None

    def memory(self) -> dict[str, int]:
        return {}

    def lost(self) -> None:
        self.before_unload()
        self.engine = None

    def close(self) -> None: ...


worker.process.host.ModelHolder = NullHolder  # type: ignore[assignment,attr-defined]

if __name__ == "__main__":
    sys.exit(main())
