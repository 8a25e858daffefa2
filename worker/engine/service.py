"""Serves one host: loads models, runs requests, sends tokens, rows and results."""

import gc
import json
import logging
import os
import threading
import time
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.utils.logging import disable_progress_bar

from actograph.contract.errors import ActographError, ModelRefused
from actograph.short_texts import memory_text
from worker.engine import messages
from worker.engine.channel import Channel, ChannelClosed
from worker.engine.engine import Engine
from worker.engine.loading import load_as_ordered, usual_options
from worker.engine.messages import Generation, Request, Rows, RunOptions
from worker.engine.model import host_memory
from worker.engine.model.device_errors import is_device_lost
from worker.engine.model.memory import capacity, memory_snapshot, used_of_devices
from worker.engine.ranks.lead import Lead
from worker.text.tokenizer import tokenizer_data

log = logging.getLogger(__name__)

#: status of a process whose device, or one of whose ranks, has failed
DEVICE_LOST = 3
#: seconds between two messages about memory in a run
_MEMORY_SECONDS = 1.0


class Service:
    """The engine of one host."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._engine: Engine | None = None
        self._lead: Lead | None = None
        self._resting: dict[str, int] = {}
        self._memory_told = float("-inf")
        self._orders: SimpleQueue[dict[str, Any] | None] = SimpleQueue()
        #: by name; the host says when no request has one any more
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self._run = _HostedRun(self)
        self.regions = _Regions(channel)
        host_memory.on_new(self.regions.add)
        disable_progress_bar()  # type: ignore[no-untyped-call]  # a log file is no terminal
        threading.Thread(target=self._read, name="host-reader", daemon=True).start()

    def serve(self) -> None:
        """Follow orders until the device is lost.

        Raises:
            ChannelClosed: the host is gone.
        """
        while (order := self._orders.get()) is not None:
            if order["m"] == "load":
                self._load(order)
            elif not self._serve_run(messages.options_of(order["options"])):
                return
        raise ChannelClosed

    def send(self, message: Mapping[str, Any], raw: bytes = b"") -> None:
        """Send a frame to the host. Raises ChannelClosed."""
        self._channel.send(message, raw)

    def _read(self) -> None:
        try:
            while True:
                message, raw = self._channel.receive()
                self._take(message, raw)
        except ChannelClosed:
            os._exit(0)  # nobody takes what is computed now
        except BaseException:
            log.exception("the host sent what cannot be read")
            os._exit(1)

    def _take(self, message: dict[str, Any], raw: bytes) -> None:
        match message["m"]:
            case "load":
                self._orders.put(message)
            case "run":
                self._run = _HostedRun(self)
                self._orders.put(message)
            case "vector":
                self._vectors[message["name"]] = np.frombuffer(raw, np.float32)
            case "request":
                self._take_request(message)
            case "free":
                self._run.freed(has_failed=message["failed"])
            case "forget":
                if self._engine is not None:
                    self._engine.forget(message["sums"])
            case "forget vectors":
                for name in message["names"]:
                    self._vectors.pop(name, None)
            case "drop" | "close" | "stop" as kind:
                self._run.told(kind, message.get("keys", ()))

    def _take_request(self, message: dict[str, Any]) -> None:
        """Queue a request; one that cannot be read fails alone."""
        data = message["request"]
        # before it can do any harm: what was not taken is not to blame for the end of this process
        self.send({"m": "taken", "key": data["key"]})
        try:
            vectors = [None if name is None else self._vectors[name] for name in message["vectors"]]
            self._run.add(messages.request_of(data, vectors))
        except Exception as error:
            log.exception("request %s cannot be read", data["key"])
            failed = Generation(
                key=data["key"], prompt_ids=(), generated_ids=(), finish_reason="error", error=error
            )
            self.send({"m": "done", "generation": messages.generation_json(failed)})

    def send_memory(self, *, every: float = 0.0) -> None:
        """Tell the host the memory in use, if it was not told in the last `every` seconds."""
        moment = time.monotonic()
        if moment - self._memory_told < every:
            return
        self._memory_told, engine = moment, self._engine
        numbers = memory_snapshot(engine.model.devices if engine is not None else ())
        if engine is not None:
            numbers |= capacity(engine.model.layer_devices, self._resting, engine.forwards.pass_bytes)
            if engine.forwards.pass_bytes is not None:
                numbers["pass_bytes"] = engine.forwards.pass_bytes
            numbers |= asdict(engine.work) | used_of_devices(engine.model.devices)
            for what, used in engine.used.items():
                numbers |= {f"{what}_{when}_bytes": size for when, size in used.items()}
        self.send({"m": "memory", "numbers": numbers})

    def _log_memory(self, event: str, what: str) -> None:
        """Log the memory of a load or a run, in one line."""
        assert self._engine is not None
        used, devices = self._engine.used.get(what), self._engine.model.devices
        if used is not None:
            on = ", ".join(map(str, devices)) if devices[0].type == "cuda" else "this process"
            log.info("%s: memory of %s: %s", event, on, memory_text(used))

    # models

    def _load(self, order: Mapping[str, Any]) -> None:
        self._unload()
        name = order["model"]["name"]
        try:
            if order["ranks"] > 1:
                self._lead = Lead(order, self._lost_rank)
            engine = load_as_ordered(order)
            engine.others = self._lead
            tokenizer = json.dumps(_crossing(engine)).encode()
            self._resting = memory_snapshot(engine.model.devices)
            engine.keep(usual_options(order))
        except Exception as error:
            self._unload()
            if is_device_lost(error):
                raise
            if not isinstance(error, ActographError):
                log.exception("%s cannot be loaded", name)
                error = ModelRefused(f"{name} cannot be loaded: {type(error).__name__}: {error}")
            self.send({"m": "refused", "error": messages.error_record(error)})
            return
        self._engine = engine
        self._log_memory(f"{name} is loaded", "load")
        self.send_memory()
        loaded = {
            "m": "loaded",
            "structure": engine.structure.model_dump(mode="json"),
            "slots": engine.forwards.slots(usual_options(order)),
            "varies": engine.forwards.varies(RunOptions()),
        }
        self.send(loaded, tokenizer)

    def _unload(self) -> None:
        if self._engine is not None:
            self._engine.forwards.release()
        self._engine = None
        self._vectors.clear()
        if self._lead is not None:
            self._lead.close()
            self._lead = None
        gc.unfreeze()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _lost_rank(self, refused: Mapping[str, Any] | None) -> None:
        """End this process, since another rank of the model has ended; it may wait for that one for ever."""
        if refused is not None:
            with suppress(ChannelClosed):
                self.send({"m": "refused", "error": refused})
        logging.shutdown()
        os._exit(DEVICE_LOST)

    # runs

    def _serve_run(self, options: RunOptions) -> bool:
        """Run requests until the host ends the run. Returns False if the device is lost."""
        assert self._engine is not None
        run = self._run
        try:
            done = self._engine.run(source=run, control=run, results=run, sink=run, options=options)
        except ChannelClosed:
            raise
        except Exception as error:
            is_lost = is_device_lost(error)
            log.log(
                logging.CRITICAL if is_lost else logging.ERROR,
                "the device is lost: the engine's process ends" if is_lost else "a run has failed",
                exc_info=error,
            )
            if is_lost:
                return False
            self._log_memory("a run has failed", "run")
            self.send_memory()
            self.send({"m": "failed", "error": messages.error_record(error)})
            return True
        self._log_memory("a run has ended", "run")
        self.send_memory()
        self.send({"m": "ended", "statistics": messages.statistics_json(done)})
        return True


def _crossing(engine: Engine) -> dict[str, Any]:
    """The model's tokenizer as data. Raises ModelRefused."""
    try:
        return tokenizer_data(engine.model.tokenizer)
    except ValueError as error:
        raise ModelRefused(f"{engine.structure.model}: {error}") from error


class _HostedRun:
    """Source, control, results and sink of a run, at the engine's end of the channel."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._changed = threading.Condition()
        self._waiting: deque[Request] = deque()
        self._told_live: set[str] = set()
        self._dropped: set[str] = set()
        self._is_closed = self._is_stopped = False
        self._freed: bool | None = None
        #: tokens of live requests that were sent
        self._live: dict[str, tuple[Sequence[int], int]] = {}

    # from the host

    def add(self, request: Request) -> None:
        """Queue a request; the host follows the tokens of a live one."""
        with self._changed:
            self._waiting.append(request)
            if request.live:
                self._told_live.add(request.key)
            self._changed.notify_all()

    def told(self, kind: str, keys: Sequence[str]) -> None:
        """Note what the host says about the run, or about some of its requests."""
        with self._changed:
            self._dropped.update(keys)
            self._is_stopped = self._is_stopped or kind == "stop"
            self._is_closed = self._is_closed or kind == "close"
            self._changed.notify_all()

    def freed(self, *, has_failed: bool) -> None:
        """Note that the host has taken the rows that were sent last."""
        with self._changed:
            self._freed = has_failed
            self._changed.notify_all()

    # source

    @property
    def exhausted(self) -> bool:
        with self._changed:
            return self._is_closed and not self._waiting

    def pull(self, room: int, *, urgent: int, wait: float) -> list[Request]:
        with self._changed:
            if wait and not (self._waiting or self._is_closed or self._is_stopped):
                self._changed.wait(wait)
            left, taken = {True: urgent, False: room}, []
            for request in list(self._waiting):
                if left[request.priority] > 0:
                    left[request.priority] -= 1
                    self._waiting.remove(request)
                    taken.append(request)
            return taken

    # control

    def stopped(self) -> bool:
        return self._is_stopped

    def dropped(self, key: str) -> bool:
        return key in self._dropped

    def beat(self) -> None:
        """Send the new tokens of live requests, and that the run goes on."""
        for key, (ids, told) in list(self._live.items()):
            if len(ids) > told:
                self._service.send({"m": "ids", "key": key}, np.asarray(ids[told:], np.int32).tobytes())
                self._live[key] = ids, len(ids)
        self._service.send({"m": "beat"})
        self._service.send_memory(every=_MEMORY_SECONDS)

    # results and sink

    def started(self, key: str, generated_ids: Sequence[int]) -> None:
        if key in self._told_live:
            self._live[key] = generated_ids, 0
            self._service.send({"m": "started", "key": key})

    def valued(self, key: str, token: int, values: Mapping[str, float]) -> None:
        if key in self._told_live:
            self._service.send({"m": "values", "key": key, "token": token, "values": dict(values)})

    def done(self, generation: Generation) -> None:
        with self._changed:
            self._dropped.discard(generation.key)
            self._told_live.discard(generation.key)
        self._live.pop(generation.key, None)
        if is_device_lost(generation.error):
            assert generation.error is not None
            raise generation.error
        if generation.error is not None and not isinstance(generation.error, ActographError):
            log.error("request %s failed", generation.key, exc_info=generation.error)
        self._service.send({"m": "done", "generation": messages.generation_json(generation)})

    def write(self, key: str, rows: Mapping[str, Rows]) -> None:
        """Tell the host where rows lie, and wait until it has taken them."""
        parts, raw = self._service.regions.described(rows)
        with self._changed:
            self._freed = None
        self._service.send({"m": "rows", "key": key, "rows": parts}, raw)
        with self._changed:
            self._changed.wait_for(lambda: self._freed is not None)
            if self._freed:
                raise _SinkFailed


class _SinkFailed(ActographError):
    """The host could not store the rows; it knows why."""


class _Regions:
    """The shared memory in which rows lie, which the host maps too."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = count()
        self._lock = threading.Lock()
        #: address, size and number of each region, by address
        self._known: list[tuple[int, int, int]] = []

    def add(self, descriptor: int, address: int, size: int, owner: object) -> None:
        """Let the host map a new region, until its owner is gone."""
        number = next(self._numbers)
        with self._lock:
            self._known.append((address, size, number))
            self._known.sort()
        self._channel.send({"m": "region", "id": number}, descriptor=descriptor)
        weakref.finalize(owner, self._gone, (address, size, number))

    def described(self, rows: Mapping[str, Rows]) -> tuple[list[dict[str, Any]], bytes]:
        """Places of rows, hook by hook; and the bytes of those that lie in no region."""
        hooks: dict[int, list[str]] = {}
        for hook, one in rows.items():
            hooks.setdefault(id(one), []).append(hook)
        parts, raw = [], []
        for names in hooks.values():
            one, pieces = rows[names[0]], []
            for piece in one.pieces:
                place = self._place(piece)
                if place is None:
                    raw.append(piece.tobytes())
                number, offset = place or (None, 0)
                pieces.append([number, offset, *piece.shape])
            parts.append(
                {
                    "hooks": names,
                    "dtype": one.dtype,
                    "first_row": one.first_row,
                    "tokens": one.tokens,
                    "over": one.over,
                    "finite": one.finite,
                    "pieces": pieces,
                }
            )
        return parts, b"".join(raw)

    def _place(self, piece: NDArray[np.uint8]) -> tuple[int, int] | None:
        """Region and offset of a piece; None if it lies in none."""
        address = piece.ctypes.data
        with self._lock:
            at = bisect_right(self._known, (address, 1 << 62, 0)) - 1
            if at < 0:
                return None
            begin, size, number = self._known[at]
        return (number, address - begin) if address + piece.nbytes <= begin + size else None

    def _gone(self, region: tuple[int, int, int]) -> None:
        with self._lock:
            self._known.remove(region)
        with suppress(ChannelClosed):
            self._channel.send({"m": "gone", "id": region[2]})
