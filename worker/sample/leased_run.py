"""A leased sample while it runs, as the scheduler sees it: its requests, and what it becomes."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from actograph.contract.errors import ActographError
from actograph.contract.specs import SamplingSpec
from storage.broker.live_text import LiveTextWriter
from storage.queue.leases import LeasedSample
from worker.engine.messages import Generation, Request, Rows
from worker.sample.outcome import Outcome
from worker.sample.unforeseen import unforeseen


class LeasedRun(ABC):
    """The state of one sample.

    While it is `running`: `request`, then the engine with `write` as the request's sink, then `end_turn` and
    `follow`. After that `decode`, `score` and `store`; `outcome` has the result or the error. Nothing here
    writes to the index.

    Attributes:
        calls_tools: `follow` may take seconds.
        sampling: of every turn; None if the prompt is only read.
        urgent: an urgent chat.
        at_once: its outcome is committed without waiting for others.
    """

    def __init__(self, outcome: Outcome, *, urgent: bool) -> None:
        self.outcome = outcome
        self.sampling: SamplingSpec | None = None
        self.urgent = urgent
        self.at_once = False
        self.calls_tools = False
        self.running = False

    @property
    def lease(self) -> LeasedSample:
        return self.outcome.lease

    @property
    def live(self) -> LiveTextWriter | None:
        """Takes the text while it is generated; None if nobody follows it."""
        return None

    @property
    def readouts(self) -> Sequence[str]:
        """Stored names of the readouts of its capture, such as `readout:career`."""
        return ()

    @property
    def sums(self) -> str | None:
        """Name under which the engine keeps summaries from turn to turn; None if it keeps none."""
        return None

    @property
    @abstractmethod
    def was_asked(self) -> bool:
        """Whether the engine has had a request of it."""

    @property
    @abstractmethod
    def has_session(self) -> bool:
        """Whether a session of this ended sample is to be stored."""

    @abstractmethod
    def request(self, *, priority: bool = False) -> Request:
        """The engine's next request."""

    @abstractmethod
    def write(self, rows: Mapping[str, Rows]) -> None:
        """Take rows of the request that runs. Raises CaptureFailed, and the store's errors."""

    @abstractmethod
    def end_turn(self, generation: Generation) -> None:
        """Take the engine's answer to a request."""

    def follow(self) -> None:  # noqa: B027 (most have one turn)
        """Prepare the turn after the last one, or end."""

    def decode(self) -> None:  # noqa: B027 (not all have a text)
        """Add text and log probabilities to a finished sample. Tokenizers serve one thread at a time."""

    @abstractmethod
    def score(self) -> None:
        """Add scores to a decoded sample. This may take seconds."""

    @abstractmethod
    def store(self) -> None:
        """Store the session of a scored sample; without it the sample fails."""

    def discard(self) -> None:  # noqa: B027 (results are written at once)
        """Remove what was written for a session that is not in the outcome."""

    def fail(self, error: ActographError) -> None:
        """End with an error."""
        self.running = False
        self.outcome = replace(self.outcome, error=error)

    @contextmanager
    def _failing(self, doing: str) -> Iterator[None]:
        """End with the error of a step; the log has `doing`, with the id of the sample."""
        try:
            yield
        except ActographError as error:
            self.fail(error)
        except Exception as error:  # noqa: BLE001 (it fails this sample alone, and the log has the trace)
            self.fail(unforeseen(error, doing.format(self.lease.id)))
