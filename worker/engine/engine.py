"""The engine of one model: runs of requests, one at a time."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from actograph.contract.errors import InvalidRequest
from actograph.contract.models import ModelStructure
from worker.engine.forwards import Forwards
from worker.engine.messages import Control, EngineWork, Results, RunOptions, RunStatistics, Sink, Source
from worker.engine.model.device_errors import RankFailed
from worker.engine.model.devices import current
from worker.engine.model.loaded import LoadedModel
from worker.engine.model.memory import MemoryWatch
from worker.engine.model_state import ModelState
from worker.engine.packed.forward import PackedForward
from worker.engine.packed.other_ranks import OtherRanks
from worker.engine.stream.loop import Loop
from worker.engine.structure.structure import discover

_NO_OPTIONS = RunOptions()


class Engine:
    """Runs one model: prompts in, continuations and activation rows out.

    One run at a time; a second caller waits.

    Attributes:
        others: the other ranks, which do all that this one does; None if it is alone, or one of them.

    Args:
        usual: options of most runs, for which the device's memory is planned.

    Raises:
        ModelRefused: (constructor) the model's structure cannot be found or verified, or its device has no
            memory for a run.
    """

    def __init__(self, model: LoadedModel, usual: RunOptions = _NO_OPTIONS) -> None:
        self.model = model
        with current(model.device):
            self.hooks = discover(model)
            self.forwards = Forwards(self.hooks)
            reason = self.forwards.reason
            self.forwards.plan(usual)
        found = {"engine": "streaming" if reason is None else "traced", "engine_reason": reason}
        self.structure: ModelStructure = self.hooks.structure.model_copy(update=found)
        self.state = ModelState(self.hooks)
        self._lock = threading.Lock()
        self.others: OtherRanks | None = None
        self._used: dict[str, dict[str, int]] = {}
        self._watch: MemoryWatch | None = None
        self._current: RunStatistics | None = None
        self._ended = EngineWork()  # of runs that have ended

    @property
    def work(self) -> EngineWork:
        """The work since the model was loaded."""
        current, done = self._current, self._ended
        return done if current is None else done.plus(current)

    @property
    def used(self) -> dict[str, dict[str, int]]:
        """ "load" and "run" -> memory of this rank in bytes, see `MemoryWatch`.

        The run is the last one; one that goes on has no "after" yet.
        """
        watch = self._watch
        return self._used | ({} if watch is None else {"run": watch.so_far()})

    def run(
        self,
        *,
        source: Source,
        control: Control,
        results: Results,
        sink: Sink | None = None,
        options: RunOptions = _NO_OPTIONS,
    ) -> RunStatistics:
        """Run requests from `source` until it is exhausted and all have ended, or `control` stops them.

        Tokens and rows of a request do not depend on the others. An exception of a callback that is given one
        request fails that request alone, except for `Results.done`: nobody would learn how the rest ends.

        Raises:
            Exception: of `results`, or what makes every pass fail; all requests are cancelled with it.
        """
        self._used.pop("run", None)
        if self.others is not None and options.traced:
            raise InvalidRequest(f"{self.model.name} is shared by several ranks, which cannot be traced")
        with self._lock, current(self.model.device), self._watched_run(), self._others_too(options):
            forward, rows, at_hooks = self.forwards.open(options)
            if self.others is not None:
                assert isinstance(forward, PackedForward)
                forward.lead(self.others)
            loop = Loop(
                forward,
                rows,
                state=self.state,
                at_hooks=at_hooks,
                source=source,
                control=control,
                results=results,
                sink=sink,
                most=self.forwards.slots(options),
                urgent=options.urgent,
                step_tokens=self.forwards.step_tokens(options),
                apart=self.forwards.on_gpu,
                shard_bytes=options.shard_bytes,
                # the other ranks are told the tokens of a pass, so they have to be read
                late=None if self.others is None else False,
            )
            self._current = loop.statistics
            try:
                return loop.run()
            finally:
                self._ended, self._current = self.work, None
                del loop  # its tensors are no memory after the run

    @contextmanager
    def _watched_run(self) -> Iterator[None]:
        self._watch = watch = MemoryWatch(self.model.devices)
        try:
            yield
        finally:
            self._used["run"], self._watch = watch.end(), None

    @contextmanager
    def _others_too(self, options: RunOptions) -> Iterator[None]:
        """Have the other ranks begin a run, and end it however it ends."""
        if self.others is None:
            yield
            return
        self.others.opened(options)
        try:
            yield
        finally:
            with suppress(RankFailed):  # then they end
                self.others.closed()

    def note_load(self, used: Mapping[str, int]) -> None:
        """Note the memory of the load, for `used`."""
        self._used["load"] = dict(used)

    def keep(self, usual: RunOptions) -> None:
        """On a GPU, take the memory of most runs now, see `Forwards.keep`. Raises MemoryError."""
        with self._lock, current(self.model.device):
            self.forwards.keep(usual)

    def forget(self, sums: str) -> None:
        """Drop the summaries under this name."""
        self.state.forget(sums)

    def width_of(self, hook: str) -> int:
        """Numbers per token at a hook or module location. Raises UnknownHook."""
        return self.hooks.width_of(hook)
