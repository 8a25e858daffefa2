"""An engine that generates nothing: what is left is the service itself.

It answers every prompt with one end token, at once or after BENCH_UNIT_SECONDS; a unit has
BENCH_UNIT_SAMPLES samples. The tokenizer is that of the demo's model.
"""

import os
import time
from collections.abc import Sequence
from typing import Any

from transformers.tokenization_utils_tokenizers import TokenizersBackend

from actograph.contract.models import ModelStructure
from actograph.demo import MODEL_DIR
from tests.support.engine_double import answered, run_requests
from worker.engine.messages import Generation, Request, RunStatistics, Sink

UNIT_SECONDS = float(os.environ.get("BENCH_UNIT_SECONDS", "0"))
UNIT_SAMPLES = int(os.environ.get("BENCH_UNIT_SAMPLES", "8"))
CONTEXT_LENGTH = 2048


class NullEngine:
    """Has the form of the engine as the drain uses it."""

    def __init__(self, name: str) -> None:
        tokenizer = TokenizersBackend.from_pretrained(MODEL_DIR)
        self._end = tokenizer.eos_token_id
        self.tokenizer, self.slots = tokenizer, UNIT_SAMPLES
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

    def run(self, **of_run: Any) -> RunStatistics:
        return run_requests(self.answer, slots=UNIT_SAMPLES, **of_run)

    def wake(self) -> None: ...

    def forget(self, sums: str) -> None: ...

    def kill(self, reason: Exception) -> None: ...

    def memory(self) -> dict[str, int]:
        return {}

    def answer(self, requests: Sequence[Request], sink: Sink | None) -> list[Generation]:
        """One end token for each prompt."""
        time.sleep(UNIT_SECONDS)
        return [answered(request, [self._end]) for request in requests]
