"""A worker with an engine that generates nothing: what is left is the service itself.

    python -m bench.null_worker

Everything but the engine is the real worker: Celery, the drain, leases, the index. The engine
answers every prompt with one end token, at once or after BENCH_UNIT_SECONDS; a unit has
BENCH_UNIT_SAMPLES samples. The tokenizer is that of the demo's model.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoTokenizer

import worker.process
from actograph.contract import model_names
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.resources import ModelStructure
from actograph.demo import MODEL_DIR
from actograph.settings import Settings
from worker.__main__ import main
from worker.engine.requests import Generation, GenerationRequest

UNIT_SECONDS = float(os.environ.get("BENCH_UNIT_SECONDS", "0"))
UNIT_SAMPLES = int(os.environ.get("BENCH_UNIT_SAMPLES", "8"))
CONTEXT_LENGTH = 2048


class NullEngine:
    """Has the form of the engine as the drain uses it."""

    def __init__(self, name: str) -> None:
        tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
        self._end = tokenizer.eos_token_id
        cpu = torch.device("cpu")
        self.model = SimpleNamespace(tokenizer=tokenizer, device=cpu, devices=(cpu,))
        self.structure = ModelStructure(
            model=name,
            architecture="Null",
            num_layers=0,
            hidden_size=0,
            vocab_size=len(tokenizer),
            context_length=CONTEXT_LENGTH,
            dtype="float32",
            device="cpu",
            num_parameters=0,
            chat_template=tokenizer.chat_template is not None,
            eos_token_ids=[self._end],
            hooks={},
            module_locations=[],
        )

    def plan_batch_size(self, *_: Any, **__: Any) -> int:
        return UNIT_SAMPLES

    def generate(
        self, requests: Sequence[GenerationRequest], *, on_step: Callable[[int], None], **_: Any
    ) -> list[Generation]:
        time.sleep(UNIT_SECONDS)
        on_step(0)
        return [
            Generation(key=r.key, prompt_ids=r.prompt_ids, generated_ids=(self._end,), finish_reason="stop")
            for r in requests
        ]


class NullHolder:
    """Holds the null engine under the name that the settings give the model."""

    def __init__(
        self,
        settings: Settings,
        on_loaded: Callable[[ModelStructure], None],
        _options_of: Callable[[str], ModelLoadOptions],
    ) -> None:
        self._name = model_names.parse(settings.model).name
        self._on_loaded = on_loaded
        self._engine: NullEngine | None = None

    def engine_for(self, _name: str) -> NullEngine:
        if self._engine is None:
            self._engine = NullEngine(self._name)
            self._on_loaded(self._engine.structure)
        return self._engine

    def memory(self) -> dict[str, int]:
        return {}


# the child process imports this module again, and finds the fake here as its parent did
worker.process.ModelHolder = NullHolder  # type: ignore[assignment,attr-defined]

if __name__ == "__main__":
    sys.exit(main())
