"""Which forward runs a model, and the memory of a run.

Packed passes take several requests at once. A model that they do not suit runs under nnsight, one request per
pass; `reason` says why.
"""

import logging
from functools import cached_property

from actograph.plans import most_slots, run_memory
from worker.engine.capture.pool import Budget
from worker.engine.locations import ModelHooks
from worker.engine.model.kv_cache import kv_bytes_per_token
from worker.engine.model.memory import available_bytes, spread_bytes
from worker.engine.packed.forward import PackedForward
from worker.engine.packed.masks import UnknownAttention
from worker.engine.packed.verification import texts_for, verify
from worker.engine.runs import RunOptions
from worker.engine.stream.live import Forward
from worker.engine.traced.forward import TracedForward

log = logging.getLogger(__name__)


class Forwards:
    """Opens the forward of each run of a model."""

    def __init__(self, hooks: ModelHooks) -> None:
        self._hooks = hooks

    @property
    def reason(self) -> str | None:
        """Why passes are not packed; None if they are. The first call verifies them."""
        return self._verified[0]

    @property
    def attends_together(self) -> bool:
        """Whether one call attends for all requests of a pass."""
        return self._verified[1]

    @cached_property
    def _verified(self) -> tuple[str | None, bool]:
        """Why passes are not packed, and whether they attend for all requests in one call."""
        name, problem = self._hooks.model.name, ""
        for fused in (True, False) if self.on_gpu else (False,):
            tokens = texts_for(self._hooks.model).tokens
            budget = Budget(2 * tokens * max(1, kv_bytes_per_token(self._hooks.model)))
            try:
                verify(PackedForward(self._hooks, budget, tokens=tokens, fused=fused))
            except UnknownAttention as error:
                problem = str(error)
                if fused:
                    log.warning("%s attends request by request, which is slower: %s", name, problem)
                continue
            return None, fused
        log.info("%s runs traced, one request per pass: %s", name, problem)
        return problem, False

    @property
    def on_gpu(self) -> bool:
        return self._hooks.model.device.type == "cuda"

    @property
    def _one_gpu(self) -> bool:
        return self.on_gpu and len(set(self._hooks.model.layer_devices)) == 1

    def slots(self, options: RunOptions) -> int:
        """Requests at once."""
        return most_slots(on_gpu=self.on_gpu, most=options.slots)

    def open(self, options: RunOptions) -> tuple[Forward, Budget]:
        """The forward of a run, and the budget of its rows, which on a CPU is the forward's too.

        Raises:
            MemoryError: there is no memory for a single request.
        """
        model = self._hooks.model
        token_bytes = max(1, kv_bytes_per_token(model))
        room = run_memory(
            free=spread_bytes(model.layer_devices, available_bytes),
            token_bytes=token_bytes,
            slots=self.slots(options),
            context=model.context_length,
            row_bytes=options.row_bytes,
            on_gpu=self.on_gpu,
        )
        rows = Budget(room.for_rows)
        if self.on_gpu:
            device = Budget(room.total)
        else:
            device = rows = Budget(room.tokens * token_bytes + room.for_rows)
        if self.reason is None and not options.traced:
            replayed = self.slots(options) + options.urgent if options.cuda_graphs and self._one_gpu else 0
            return PackedForward(
                self._hooks,
                device,
                tokens=room.tokens,
                fused=self.attends_together,
                replayed=replayed,
            ), rows
        return TracedForward(self._hooks, device, tokens=room.tokens, token_bytes=token_bytes), rows
