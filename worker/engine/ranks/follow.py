"""The work of a rank other than 0: loading its share of a model, and the passes that rank 0 tells."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from transformers.utils.logging import disable_progress_bar

from actograph.contract.errors import ActographError, ModelRefused
from worker.engine import messages
from worker.engine.capture.pool import Pool
from worker.engine.channel import Channel
from worker.engine.edits import Change
from worker.engine.engine import Engine
from worker.engine.loading import load_as_ordered, usual_options
from worker.engine.model import group
from worker.engine.packed.forward import PackedForward
from worker.engine.packed.step import Chunk, Step
from worker.engine.pass_hooks import PassHooks

_Message = tuple[dict[str, Any], bytes]


def follow(channel: Channel, receive: Callable[[], _Message]) -> None:
    """Load what the first message says, then do as rank 0 does.

    Raises:
        Exception: a pass has failed. This rank is out of step then and has to end.
    """
    disable_progress_bar()  # type: ignore[no-untyped-call]  # a log file is no terminal
    order, _ = receive()
    group.join(order["rank"], order["ranks"], order["file"])
    try:
        engine = load_as_ordered(order)
        engine.keep(usual_options(order))
    except Exception as error:  # noqa: BLE001 (rank 0 passes it on)
        if not isinstance(error, ActographError):
            error = ModelRefused(
                f"{order['model']['name']} cannot be loaded: {type(error).__name__}: {error}"
            )
        channel.send({"m": "failed", "error": messages.error_record(error)})
        while True:
            receive()  # rank 0 ends this process
    follower = _Follower(engine)
    with torch.inference_mode():
        while True:
            follower.take(*receive())


class _Follower:
    """Runs of a model, as one rank of several."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._changes: dict[int, Change] = {}
        self._forward: PackedForward | None = None

    def take(self, message: dict[str, Any], raw: bytes) -> None:
        """Do what rank 0 does."""
        match message["m"]:
            case "open":
                forward, rows, at_hooks = self._engine.forwards.open(messages.options_of(message["options"]))
                assert isinstance(forward, PackedForward)
                self._forward = forward
                pool = Pool(forward.hooks.model.device, rows, rows)
                self._at_hooks = at_hooks or PassHooks(forward.hooks, pool)
            case "close":
                self._running.close()
                self._forward = None
            case "change":
                vector = np.frombuffer(raw, np.float32) if raw else None
                devices = self._engine.model.devices
                self._changes[message["number"]] = Change(
                    message["op"],
                    message["coefficient"],
                    vector,
                    devices,
                    columns=message["columns"],
                )
            case "forget":
                del self._changes[message["number"]]
            case "move":
                self._running.arena.move(*message["places"])
            case "clear":
                self._running.arena.clear(*message["places"])
            case "pass":
                self._pass(message, np.frombuffer(raw, np.int32))

    @property
    def _running(self) -> PackedForward:
        assert self._forward is not None
        return self._forward

    def _pass(self, message: dict[str, Any], numbers: "np.ndarray[Any, np.dtype[np.int32]]") -> None:
        ids, spans, chunks, kept, planned = np.split(numbers, np.cumsum(message["sizes"])[:-1])
        made: list[Chunk] = []
        first = len(spans) // 2
        for begin, start, tokens in chunks.reshape(-1, 3).tolist():
            made.append(Chunk(first, first + tokens, begin, start))
            first += tokens
        changes, at = [], 0
        while at < len(planned):
            location, number, size = planned[at : at + 3].tolist()
            changes.append((location, self._changes[number], planned[at + 3 : at + 3 + size].tolist()))
            at += 3 + size
        forward = self._running
        step = Step(
            forward.arena.keys,
            forward.arena.values,
            [(begin, end) for begin, end in spans.reshape(-1, 2).tolist()],
            made,
            forward.fused,
        )
        self._at_hooks.follow(changes, len(ids), len(ids) if message["all"] else len(kept))
        forward.follow(ids, step, None if message["all"] else kept, self._at_hooks)
