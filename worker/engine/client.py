"""The host's end of an engine's process: starts it, loads models in it, runs requests, takes rows.

A lost or stuck device is a process that has ended. Nothing but what ran there is lost with it.
"""

import hashlib
import json
import logging
import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actograph.contract.errors import ActographError, CaptureFailed, DeviceLost, ModelRefused, WorkerStalled
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.models import ModelStructure, ServedModel
from actograph.settings import Settings
from worker.engine import messages
from worker.engine.channel import Channel, ChannelClosed, array_of, mapped
from worker.engine.messages import (
    Control,
    Generation,
    Request,
    Results,
    Rows,
    RunOptions,
    RunStatistics,
    Sink,
    Source,
)
from worker.text.tokenizer import Tokenizer, tokenizer_of

log = logging.getLogger(__name__)

#: requests in the process beside those that have a slot, so that a free slot need not wait for the host
_AHEAD = 8
#: seconds between two looks at the source and the control, if nothing wakes them sooner
_LOOK_SECONDS = 0.05
#: seconds for a process to end by itself
_END_SECONDS = 5.0


class EngineClient(Protocol):
    """One loaded model, as the host uses it.

    Attributes:
        slots: requests at once, priority requests besides.
        varies: runs read variants of prompts, unless they are traced or repeatable.
    """

    @property
    def structure(self) -> ModelStructure: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def slots(self) -> int: ...

    @property
    def varies(self) -> bool: ...

    def run(
        self, *, source: Source, control: Control, results: Results, sink: Sink | None, options: RunOptions
    ) -> RunStatistics:
        """Run requests from `source` until it is exhausted and all have ended, or `control` stops them.

        Raises:
            DeviceLost, WorkerStalled: the engine's process has ended; what ran there is lost.
            Exception: of `results`, or what makes every pass fail. All requests are cancelled with it.
        """
        ...

    def wake(self) -> None:
        """Look at the source and the control now."""
        ...

    def forget(self, sums: str) -> None:
        """Drop the summaries under this name."""
        ...

    def kill(self, reason: WorkerStalled) -> None:
        """End the process; a run then raises this error."""
        ...

    def memory(self) -> dict[str, int]:
        """Memory in use, and memory that a run may use."""
        ...


class EngineProcess:
    """One engine's process. One model is loaded at a time, and one run goes on at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._changed = threading.Condition()
        self._structure: ModelStructure | None = None
        self._tokenizer: Tokenizer | None = None
        self._slots, self._varies = 1, False
        self._load: tuple[dict[str, Any], bytes] | None = None
        self._memory: dict[str, int] = {}
        self._reason: WorkerStalled | None = None
        self._run: _HostRun | None = None
        self._regions: dict[int, mmap.mmap] = {}
        self._has_ended = False
        self._deliveries: SimpleQueue[tuple[dict[str, Any], bytes] | None] = SimpleQueue()
        self._channel, theirs = Channel.pair()
        # the service's own settings, which hold secrets, stay here
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ACTOGRAPH_")}
        environment |= {
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "ACTOGRAPH_LOG_LEVEL": settings.log_level,
            "ACTOGRAPH_LOG_FORMAT": settings.log_format,
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "worker.engine", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # a terminal's Ctrl-C is for the host
            )
        self._threads = [
            threading.Thread(target=self._read, name="engine-reader", daemon=True),
            threading.Thread(target=self._deliver, name="delivery", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def structure(self) -> ModelStructure:
        assert self._structure is not None
        return self._structure

    @property
    def tokenizer(self) -> Tokenizer:
        assert self._tokenizer is not None
        return self._tokenizer

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def varies(self) -> bool:
        return self._varies

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def load(self, model: ServedModel, options: ModelLoadOptions) -> None:
        """Load a model, in place of the one that is loaded.

        Raises:
            ActographError: it is refused; no model is loaded then.
            DeviceLost: the process has ended.
        """
        settings = self._settings
        self._load, self._structure = None, None
        self._send(
            {
                "m": "load",
                "model": asdict(model) | {"aliases": sorted(model.aliases)},
                "options": options.model_dump(mode="json"),
                "dtype": settings.dtype,
                "device": settings.device,
                "revision": settings.revision,
                "slots": settings.slots,
                "cuda_graphs": settings.cuda_graphs,
                "repeatable": settings.repeatable,
                "threads": settings.threads,
                "ranks": settings.tensor_parallel,
            }
        )
        with self._changed:
            self._changed.wait_for(lambda: self._load is not None or self._has_ended)
            answer, self._load = self._load, None
        if answer is None:
            raise self._lost("while it loaded a model")
        message, raw = answer
        if message["m"] == "refused":
            raise messages.error_of(message["error"])
        try:
            self._tokenizer = tokenizer_of(json.loads(raw))
        except ValueError as error:
            raise ModelRefused(f"{model.name}: {error}") from error
        self._slots, self._varies = message["slots"], message["varies"]
        self._structure = ModelStructure.model_validate(message["structure"])

    def run(
        self, *, source: Source, control: Control, results: Results, sink: Sink | None, options: RunOptions
    ) -> RunStatistics:
        """Run requests, see `EngineClient.run`."""
        run = _HostRun(results, sink)
        with self._changed:
            self._run = run
        try:
            self._send({"m": "run", "options": messages.options_json(options)})
            return self._follow(run, source, control, options)
        finally:
            with self._changed:
                self._run = None
            self._forget_vectors(run, list(run.vectors))

    def _follow(
        self, run: "_HostRun", source: Source, control: Control, options: RunOptions
    ) -> RunStatistics:
        """Send what there is to send until the run has ended."""
        is_closed = is_stopped = False
        error: Exception | None = None
        while True:
            sent = 0
            try:
                if not is_closed and not is_stopped:
                    sent = self._pull(run, source, options)
                if not is_stopped and (error is not None or run.error is not None or control.stopped()):
                    is_stopped = True
                    self._send({"m": "stop"})
                if not is_closed and (is_stopped or source.exhausted):
                    is_closed = True
                    self._send({"m": "close"})
                if dropped := run.new_drops(control.dropped):
                    self._send({"m": "drop", "keys": dropped})
                if run.take_beat():
                    control.beat()
            except Exception as raised:  # noqa: BLE001 (raised below, once the run has ended)
                error = error or raised
            with self._changed:
                if not sent and not run.news:
                    self._changed.wait(_LOOK_SECONDS)
                run.news = False
                ended, failure, has_ended = run.ended, run.failure, self._has_ended
            if failure is not None:
                raise failure
            if ended is not None:
                if (error := error or run.error) is not None:
                    raise error
                return ended
            if has_ended:
                self._cancel_untaken(run)
                raise self._lost("while it ran samples")

    def _cancel_untaken(self, run: "_HostRun") -> None:
        """Cancel requests that the ended process never had: they are not to blame for its end."""
        for request in [request for key, request in run.live.items() if key not in run.taken]:
            run.results.done(
                Generation(
                    key=request.key,
                    prompt_ids=request.prompt_ids,
                    generated_ids=(),
                    finish_reason="cancelled",
                )
            )

    def _pull(self, run: "_HostRun", source: Source, options: RunOptions) -> int:
        """Send requests for which there is room. Returns how many."""
        with self._changed:
            chats = sum(request.priority for request in run.live.values())
            others = len(run.live) - chats
        room = max(0, self._slots + min(_AHEAD, self._slots) - others)
        pulled = source.pull(room, urgent=max(0, options.urgent - chats), wait=0.0)
        for request in pulled:
            with self._changed:
                run.live[request.key] = request
            self._send_request(run, request)
        return len(pulled)

    def _send_request(self, run: "_HostRun", request: Request) -> None:
        names = [
            None if vector is None else self._vector(run, request.key, vector)
            for vector in messages.vectors_of(request)
        ]
        self._send({"m": "request", "request": messages.request_json(request), "vectors": names})

    def _vector(self, run: "_HostRun", key: str, vector: NDArray[np.float32]) -> str:
        """Name of a vector, which the process keeps until the requests with it have ended."""
        raw = vector.tobytes()
        name = hashlib.sha256(raw).hexdigest()
        with run.vectors_change:
            users = run.vectors.get(name)
            if users is None:
                users = run.vectors[name] = set()
                self._send({"m": "vector", "name": name}, raw)
            users.add(key)
        return name

    def _forget_vectors(self, run: "_HostRun", names: Sequence[str]) -> None:
        """Let the process drop vectors that no request has."""
        with run.vectors_change:
            for name in names:
                run.vectors.pop(name, None)
            if names:
                self._send({"m": "forget vectors", "names": list(names)})

    def wake(self) -> None:
        """See `EngineClient.wake`."""
        with self._changed:
            if self._run is not None:
                self._run.news = True
            self._changed.notify_all()

    def forget(self, sums: str) -> None:
        """See `EngineClient.forget`."""
        with suppress(ChannelClosed):  # then they are gone
            self._channel.send({"m": "forget", "sums": sums})

    def memory(self) -> dict[str, int]:
        """See `EngineClient.memory`: as last told, at most a second ago while it runs requests."""
        return dict(self._memory)

    def kill(self, reason: WorkerStalled) -> None:
        """See `EngineClient.kill`."""
        with self._changed:
            self._reason = self._reason or reason
        self._kill()

    def close(self) -> None:
        """End the process, and wait for its end."""
        self._channel.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait()
        for thread in self._threads:
            thread.join()

    def _kill(self) -> None:
        """End the process and the further ranks that it has started, which may hang."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _lost(self, doing: str) -> DeviceLost | WorkerStalled:
        code = self._process.wait()
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"status {code}"
        return self._reason or DeviceLost(f"the engine's process ended {doing} ({how}); it is started again")

    def _send(self, message: Mapping[str, Any], raw: bytes = b"") -> None:
        try:
            self._channel.send(message, raw)
        except ChannelClosed:
            with self._changed:  # the reader notes it; whoever waits sees it
                self._changed.wait_for(lambda: self._has_ended)

    def _release_vectors(self, run: "_HostRun", request: Request) -> None:
        """Note that a request has ended, for its vectors."""
        if any(vector is not None for vector in messages.vectors_of(request)):
            with run.vectors_change:
                for users in run.vectors.values():
                    users.discard(request.key)
                self._forget_vectors(run, [name for name, users in run.vectors.items() if not users])

    # the process's side

    def _read(self) -> None:
        try:
            while True:
                message, raw = self._channel.receive()
                self._take(message, raw)
        except ChannelClosed:
            pass
        except Exception:
            log.exception("the engine's process sent what cannot be read; it is ended")
        self._kill()
        self._process.wait()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        self._deliveries.put(None)

    def _take(self, message: dict[str, Any], raw: bytes) -> None:
        match message["m"]:
            case "region":
                descriptor = self._channel.take_descriptor()
                self._regions[message["id"]] = mapped(descriptor)
                os.close(descriptor)
            case "rows" | "done" | "gone" | "ended":
                self._deliveries.put((message, raw))
            case "loaded" | "refused":
                with self._changed:
                    self._load = message, raw
                    self._changed.notify_all()
            case "memory":
                self._memory = message["numbers"]
            case _:
                self._take_of_run(message, raw)

    def _take_of_run(self, message: dict[str, Any], raw: bytes) -> None:
        run = self._run
        if run is None:
            return
        match message["m"]:
            case "started":
                run.tokens[message["key"]] = tokens = list[int]()
                try:
                    run.results.started(message["key"], tokens)
                except Exception as raised:  # noqa: BLE001 (it ends the run)
                    run.error = run.error or raised
            case "ids":  # perhaps of one whose result has overtaken them
                run.tokens.get(message["key"], []).extend(np.frombuffer(raw, np.int32).tolist())
            case "values":
                run.results.valued(message["key"], message["token"], message["values"])
            case "taken":
                run.taken.add(message["key"])
            case "beat":
                run.has_beaten = True
            case "failed":
                run.failure = messages.error_of(message["error"])
        self.wake()

    def _deliver(self) -> None:
        while (item := self._deliveries.get()) is not None:
            message, raw = item
            with self._changed:
                run = self._run
            match message["m"]:
                case "gone":
                    self._regions.pop(message["id"], None)
                case "rows":
                    self._write(run, message, raw)
                case "done" if run is not None:
                    self._done(run, message)
                case "ended" if run is not None:
                    run.ended = messages.statistics_of(message["statistics"])
                    self.wake()

    def _write(self, run: "_HostRun | None", message: dict[str, Any], raw: bytes) -> None:
        """Let the sink take rows, and give their memory back."""
        error: Exception | None = None
        try:
            if run is not None:
                if run.sink is None:
                    raise CaptureFailed("hooks need a sink")
                run.sink.write(message["key"], self._rows(message["rows"], raw))
        except Exception as raised:
            trace = None if isinstance(raised, ActographError) else raised
            log.warning(
                "request %s: its rows could not be stored: %s", message["key"], raised, exc_info=trace
            )
            error = raised
            if run is not None:
                run.sink_errors.setdefault(message["key"], raised)
        with suppress(ChannelClosed):
            self._channel.send({"m": "free", "failed": error is not None})

    def _rows(self, parts: Sequence[Mapping[str, Any]], raw: bytes) -> dict[str, Rows]:
        made: dict[str, Rows] = {}
        own, at = np.frombuffer(raw, np.uint8), 0
        for part in parts:
            pieces = []
            for region, offset, rows, row_bytes in part["pieces"]:
                if region is None:
                    pieces.append(own[at : at + rows * row_bytes].reshape(rows, row_bytes))
                    at += rows * row_bytes
                else:
                    pieces.append(array_of(self._regions[region], offset, rows, row_bytes))
            tokens = None if part["tokens"] is None else tuple(part["tokens"])
            rows_of_hook = Rows(
                part["first_row"], tuple(pieces), part["dtype"], tokens, part["over"], part["finite"]
            )
            made |= dict.fromkeys(part["hooks"], rows_of_hook)
        return made

    def _done(self, run: "_HostRun", message: dict[str, Any]) -> None:
        data = message["generation"]
        with self._changed:
            request = run.live.pop(data["key"])
            run.taken.discard(data["key"])
            run.tokens.pop(data["key"], None)
        self._release_vectors(run, request)
        generation = messages.generation_of(data, request.prompt_ids)
        sink_error = run.sink_errors.pop(data["key"], None)
        if sink_error is not None:
            generation = replace(generation, error=sink_error)
        try:
            run.results.done(generation)
        except Exception as raised:  # noqa: BLE001 (it ends the run)
            run.error = run.error or raised
        self.wake()


class _HostRun:
    """State of a run at the host.

    Attributes:
        live: requests that were sent and have no result.
        taken: those of them that the engine's process has read.
        tokens: of live requests whose tokens are told, so far.
        vectors: names that the process has, each with the keys of its requests.
        news: something has happened since the last look.
        failure: why the engine's process has ended the run.
        error: of the host, for which it ends the run.
    """

    def __init__(self, results: Results, sink: Sink | None) -> None:
        self.results, self.sink = results, sink
        self.live: dict[str, Request] = {}
        self.taken: set[str] = set()
        self.tokens: dict[str, list[int]] = {}
        self.sink_errors: dict[str, Exception] = {}
        self.vectors: dict[str, set[str]] = {}
        self.vectors_change = threading.RLock()
        self.news = self.has_beaten = False
        self.ended: RunStatistics | None = None
        self.failure: Exception | None = None
        self.error: Exception | None = None
        self._dropped: set[str] = set()

    def take_beat(self) -> bool:
        """Whether the engine has shown progress since the last call."""
        has_beaten, self.has_beaten = self.has_beaten, False
        return has_beaten

    def new_drops(self, dropped: Callable[[str], bool]) -> list[str]:
        """Live requests that are to be dropped and were not yet."""
        live = list(self.live)
        self._dropped &= set(live)
        new = [key for key in live if key not in self._dropped and dropped(key)]
        self._dropped |= set(new)
        return new
