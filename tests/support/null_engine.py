"""An engine that generates nothing: what is left is the service itself.

It answers every prompt with one end token, at once or after BENCH_UNIT_SECONDS; a unit has
BENCH_UNIT_SAMPLES samples. The tokenizer is that of the demo's model.
"""

import os
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from transformers import AutoTokenizer

from actograph.contract.models import ModelStructure
from actograph.demo import MODEL_DIR
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
