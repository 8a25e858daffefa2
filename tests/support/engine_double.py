"""Engines that do not compute, or that notice what a real one is asked, and a holder of one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from actograph.contract.errors import UnknownModel
from actograph.contract.models import ModelIdentity
from tests.support.local_engine import local
from worker.engine.messages import Control, Generation, Request, Results, RunStatistics, Sink, Source


def answered(request: Request, ids: Sequence[int]) -> Generation:
    """A finished generation."""
    return Generation(
        key=request.key, prompt_ids=request.prompt_ids, generated_ids=tuple(ids), finish_reason="stop"
    )


def run_requests(
    answer: Callable[[Sequence[Request], Sink | None], Sequence[Generation]],
    *,
    source: Source,
    control: Control,
    results: Results,
    sink: Sink | None = None,
    slots: int = 8,
    **_: Any,
) -> RunStatistics:
    """`Engine.run` without a model: `answer` makes the generations of the requests that were pulled."""
    while not source.exhausted and not control.stopped():
        pulled = list(source.pull(slots, urgent=0, wait=0.2))
        for request in pulled:
            results.started(request.key, ())
        for generation in answer(pulled, sink) if pulled else ():
            results.done(generation)
        control.beat()
    return RunStatistics()


class OneModel:
    """A model holder whose model is loaded already."""

    def __init__(self, name: str, engine: Any, *, slots: int = 0) -> None:
        self._name, self.engine = name, local(engine, slots=slots)
        self.loads = 0
        self.before_unload: Callable[[], None] = lambda: None

    def lost(self) -> None:
        """The process has ended; the next one has the model at once."""
        self.before_unload()

    def holds(self, name: str) -> bool:
        return name == self._name

    def engine_for(self, name: str) -> Any:
        if name != self._name:
            raise UnknownModel(f"model {name!r} is not served by this worker; it serves {self._name}")
        return self.engine

    def engine_as(self, pinned: ModelIdentity) -> Any:
        return self.engine_for(pinned.model)


class Watched:
    """The real engine; `pulled` is called with the requests of each pull, before they run.

    Attributes:
        most: requests that ran at once, at most.
    """

    def __init__(
        self, engine: Any, pulled: Callable[[Sequence[Request]], None] = lambda requests: None
    ) -> None:
        self._engine, self._pulled = local(engine), pulled
        self._now = self.most = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, *, source: Source, results: Results, **others: Any) -> RunStatistics:
        watched = {"source": _Source(source, self._pull), "results": _Results(results, self._done)}
        statistics: RunStatistics = self._engine.run(**watched, **others)
        return statistics

    def _pull(self, requests: Sequence[Request]) -> None:
        self._pulled(requests)
        self._now += len(requests)
        self.most = max(self.most, self._now)

    def _done(self) -> None:
        self._now -= 1


class Scripted:
    """The real engine, whose answers are put into its mouth: turn number -> what the model says.

    Attributes:
        asked: key -> the requests of each turn.
    """

    def __init__(self, engine: Any, say: Callable[[int], str]) -> None:
        self._engine, self._say = local(engine), say
        self.asked: dict[str, list[Request]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, **of_run: Any) -> RunStatistics:
        return run_requests(self._answer, **of_run)

    def _answer(self, requests: Sequence[Request], _sink: Sink | None) -> list[Generation]:
        made = []
        for request in requests:
            turns = self.asked.setdefault(request.key, [])
            ids = self._engine.tokenizer.encode(self._say(len(turns)), add_special_tokens=False)
            turns.append(request)
            made.append(answered(request, ids))
        return made


class _Source:
    def __init__(self, source: Source, pulled: Callable[[Sequence[Request]], None]) -> None:
        self._source, self._pulled = source, pulled

    @property
    def exhausted(self) -> bool:
        return self._source.exhausted

    def pull(self, room: int, *, urgent: int, wait: float) -> Sequence[Request]:
        found = self._source.pull(room, urgent=urgent, wait=wait)
        if found:
            self._pulled(found)
        return found


class _Results:
    def __init__(self, results: Results, done: Callable[[], None]) -> None:
        self._results, self._done = results, done

    def started(self, key: str, generated_ids: Sequence[int]) -> None:
        self._results.started(key, generated_ids)

    def valued(self, key: str, token: int, values: Mapping[str, float]) -> None:
        self._results.valued(key, token, values)

    def done(self, generation: Generation) -> None:
        self._done()
        self._results.done(generation)
