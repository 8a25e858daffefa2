"""Rank 0's side of tensor parallelism: it starts the other ranks, and tells them every pass.

Rank 0 decides which tokens run, chooses the next ones and keeps the rows. The others hold their share of the
weights, keys and values, and run the same passes with the same changes of activations. A message of a pass
takes some hundred bytes; it goes through a socket, since a collective call takes longer.

If a rank ends, or a pass fails, all of them end: they would be out of step.
"""

import logging
import os
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

import numpy as np

from worker.engine import messages
from worker.engine.channel import Channel, ChannelClosed
from worker.engine.edits import Change, PlannedChange
from worker.engine.messages import RunOptions
from worker.engine.model import group
from worker.engine.model.device_errors import RankFailed
from worker.engine.packed.step import Step

log = logging.getLogger(__name__)

#: seconds in which rank 0 finds out by itself why a model cannot be loaded, if another rank has
_GRACE = 5.0


class Lead:
    """The other ranks of a model, while it is loaded.

    Args:
        order: what the host asks for, which the other ranks load too.
        lost: called from a thread of its own with the reason if a rank ends, or cannot load its share.
    """

    def __init__(self, order: Mapping[str, Any], lost: Callable[[dict[str, Any] | None], None]) -> None:
        self._lost = lost
        self._closing = threading.Event()
        self._numbers = count()
        self._known: weakref.WeakKeyDictionary[Change, int] = weakref.WeakKeyDictionary()
        #: changes that no request needs any more; finalizers may run anywhere, so they send nothing
        self._gone: deque[int] = deque()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._channels: list[Channel] = []
        size = int(order["ranks"])
        # memory without a name, in which the ranks meet: nothing is left of it, however they end
        self._meeting = os.memfd_create("actograph-ranks", os.MFD_CLOEXEC)
        try:
            for rank in range(1, size):
                self._start(rank, size)
            told = {**order, "file": f"/proc/{os.getpid()}/fd/{self._meeting}"}
            for rank, channel in enumerate(self._channels, 1):
                channel.send({**told, "rank": rank})
            group.join(0, size, told["file"])
        except BaseException:
            self.close()
            raise

    def _start(self, rank: int, size: int) -> None:
        channel, theirs = Channel.pair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "worker.engine.ranks", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._processes.append(process)
        self._channels.append(channel)
        threading.Thread(
            target=self._watch, args=(f"rank {rank} of {size}", channel), name=f"rank-{rank}", daemon=True
        ).start()

    def _watch(self, name: str, channel: Channel) -> None:
        refused: dict[str, Any] | None = None
        with suppress(ChannelClosed):
            while True:
                message, _ = channel.receive()
                refused = message["error"]
                if self._closing.wait(_GRACE):
                    return
                refused["message"] = f"{name}: {refused['message']}"
                break
        if not self._closing.is_set():
            log.critical("%s has ended: all ranks end", name)
            self._lost(refused)

    def close(self) -> None:
        """End the other ranks, and leave their group."""
        self._closing.set()
        for channel in self._channels:
            channel.close()
        for process in self._processes:
            process.kill()
            process.wait()
        group.leave()
        os.close(self._meeting)

    # what the other ranks do too

    def opened(self, options: RunOptions) -> None:
        """A run begins."""
        self._send({"m": "open", "options": messages.options_json(options)})

    def closed(self) -> None:
        """The run has ended."""
        self._send({"m": "close"})

    def moved(self, source: int, target: int, tokens: int) -> None:
        """Keys and values are copied within the arena."""
        self._send({"m": "move", "places": [source, target, tokens]})

    def cleared(self, start: int, tokens: int) -> None:
        """Values of the arena are set to zero."""
        self._send({"m": "clear", "places": [start, tokens]})

    def passes(
        self,
        ids: Sequence[int],
        step: Step,
        kept: Sequence[int] | None,
        changes: Sequence[PlannedChange],
    ) -> None:
        """A pass begins.

        Args:
            kept: places of the tokens whose logits are computed; None: of all.
            changes: of activations.
        """
        while self._gone:
            self._send({"m": "forget", "number": self._gone.popleft()})
        planned: list[int] = []
        for location, change, places in changes:
            planned += (location, self._number(change), len(places), *places)
        parts: list[Any] = [
            ids,
            step.spans,
            [(c.begin, c.start, c.stop - c.first) for c in step.chunks],
            () if kept is None else kept,
            planned,
        ]
        arrays = [np.asarray(part, np.int32).reshape(-1) for part in parts]
        sizes = [len(array) for array in arrays]
        self._send({"m": "pass", "sizes": sizes, "all": kept is None}, b"".join(a.tobytes() for a in arrays))

    def _number(self, change: Change) -> int:
        """Number of a change, which the other ranks know then."""
        number = self._known.get(change)
        if number is None:
            number = self._known[change] = next(self._numbers)
            weakref.finalize(change, self._gone.append, number)
            vector = b"" if change.vector is None else change.vector.tobytes()
            message = {"m": "change", "number": number, "op": change.op, "coefficient": change.coefficient}
            self._send(message | {"columns": change.columns}, vector)
        return number

    def _send(self, message: Mapping[str, Any], raw: bytes = b"") -> None:
        for channel in self._channels:
            try:
                channel.send(message, raw)
            except ChannelClosed as error:
                raise RankFailed("another rank has ended") from error
