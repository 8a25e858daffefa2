"""The streaming engine of one model: continuous batching with capture."""

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from worker.engine.locations import ModelHooks
from worker.engine.model import memory
from worker.engine.requests import BufferOptions
from worker.engine.runs import RequestSource, RunControl, RunPlan, RunResults, RunSink, RunStatistics
from worker.engine.streaming.cache import LayerShape
from worker.engine.streaming.capture.delivery import Delivery
from worker.engine.streaming.loop import Loop
from worker.engine.streaming.registration import slots_attention
from worker.engine.streaming.slots import Slots

#: most tokens of one forward pass by default
CPU_STEP_TOKENS, GPU_STEP_TOKENS = 256, 2048
#: rows that have not left take this part of the free memory at most: one of so many
_SHARE_OF_ROWS = 4
_NO_OPTIONS = BufferOptions()


class StreamingEngine:
    """Runs one model: requests are pulled while there is room, results leave as they are ready.

    One run at a time; a second caller waits. The model may be run by nobody else meanwhile.

    Args:
        shapes: keys and values of each layer, see `verification.verify`.
        lock: held while it runs; None makes one of its own.
    """

    def __init__(
        self, hooks: ModelHooks, shapes: Sequence[LayerShape], lock: AbstractContextManager[Any] | None = None
    ) -> None:
        self._hooks, self._shapes = hooks, tuple(shapes)
        self._lock = lock or threading.Lock()

    def run(
        self,
        plan: RunPlan,
        *,
        source: RequestSource,
        results: RunResults,
        control: RunControl,
        sink: RunSink | None = None,
        options: BufferOptions = _NO_OPTIONS,
        most: int = 0,
        step_tokens: int = 0,
    ) -> RunStatistics:
        """Continue every request of the source.

        Tokens and rows of a request do not depend on what runs beside it, but for rounding. A request at
        fault ends as "error"; the others go on.

        Args:
            sink: required if anything is captured.
            most: requests at once; 0: the default of the device. Memory may allow fewer.
            step_tokens: most tokens of one forward pass; a longer prompt takes several. 0: the default.

        Raises:
            CaptureFailed: the rows do not have the verified structure.
            Exception: `results` raised it.
        """
        if sink is None and plan.capture is not None:
            raise ValueError("capture needs a sink")
        model = self._hooks.model
        share = memory.available_bytes(model.device) // _SHARE_OF_ROWS
        options = replace(options, host_buffer_bytes=min(options.host_buffer_bytes, share))
        on_gpu = model.device.type == "cuda"
        with self._lock, torch.inference_mode(), slots_attention(model):
            delivery = Delivery(sink, results, options.shard_bytes)
            try:
                loop = Loop(
                    self._hooks,
                    Slots(model, self._shapes, most=most),
                    plan,
                    source=source,
                    control=control,
                    delivery=delivery,
                    options=options,
                    step_tokens=step_tokens or (GPU_STEP_TOKENS if on_gpu else CPU_STEP_TOKENS),
                )
                loop.run()
            finally:
                delivery.close()
            delivery.check()
        loop.statistics.rows = delivery.rows
        return loop.statistics
