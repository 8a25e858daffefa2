"""A run of a list of requests, for what is tried when a model is loaded."""

from collections.abc import Mapping, Sequence

from worker.engine.messages import Generation, Request


class ListedRequests:
    """Source, control and results of a run of these requests."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._waiting = list(requests)

    @property
    def exhausted(self) -> bool:
        return not self._waiting

    def pull(self, room: int, *, urgent: int, wait: float) -> Sequence[Request]:
        pulled, self._waiting = self._waiting[:room], self._waiting[room:]
        return pulled

    def stopped(self) -> bool:
        return False

    def dropped(self, key: str) -> bool:
        return False

    def beat(self) -> None:
        """Nobody watches this run."""

    def started(self, key: str, generated_ids: Sequence[int]) -> None:
        """Nobody reads its tokens."""

    def valued(self, key: str, token: int, values: Mapping[str, float]) -> None:
        """Nobody reads its values."""

    def done(self, generation: Generation) -> None:
        """Raise the error of a request, which ends the run."""
        if generation.error is not None:
            raise generation.error
