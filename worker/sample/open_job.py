"""A job that is ready to run: what all its samples share, made once."""

import logging

from actograph.contract.errors import ActographError, CaptureFailed, JobEnded, SampleTimeout
from actograph.contract.specs import SamplingSpec
from actograph.settings import Settings
from storage.broker.live_text import LiveTextWriter
from worker.engine.client import EngineClient
from worker.engine.messages import Capture, Generation, RunOptions
from worker.runners.runner import Runner
from worker.sample.outcome import Interrupted
from worker.sample.provenance import Provenance
from worker.sample.replay import SteeringOf
from worker.sample.steering import UNSTEERED, Steering
from worker.text.segments import Markup

logger = logging.getLogger(__name__)


class OpenJob:
    """One job, or chats that share their properties, on an engine.

    Attributes:
        capture: what the engine keeps of each sample; None if nothing is captured.
        time_limit: seconds for one sample.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        engine: EngineClient,
        runner: Runner,
        provenance: Provenance | None,
        steering: Steering = UNSTEERED,
        markup: Markup | None = None,
        time_limit: float | None = None,
        live: LiveTextWriter | None = None,
        refused: ActographError | None = None,
        traced: bool = False,
        steering_of: SteeringOf | None = None,
    ) -> None:
        """
        Args:
            provenance: None if the job captures nothing.
            markup: segment markers; None uses the tokenizer's defaults.
            live: writer of live text; None if nobody follows the samples.
            refused: why no sample can run, such as lines of a batch file with an unknown hook.
            traced: whether its samples run under nnsight; only jobs that agree in this share a run.
            steering_of: of a replay, the interventions of the jobs whose samples it reads.
        """
        self.engine = engine
        self.runner = runner
        self.provenance = provenance
        self.steering = steering
        self.steering_of = steering_of or (lambda spec: UNSTEERED)
        self.markup = markup or Markup(engine.tokenizer)
        self.context_length = engine.structure.context_length
        self.time_limit = time_limit
        self.live = live
        self.refused = refused
        self.options = RunOptions(
            slots=settings.slots,
            row_bytes=settings.host_buffer_bytes,
            shard_bytes=settings.shard_bytes,
            traced=traced,
            cuda_graphs=settings.cuda_graphs,
            repeatable=settings.repeatable,
        )
        self.capture: Capture | None = None if provenance is None else provenance.asked

    def end_ids(self, sampling: SamplingSpec) -> frozenset[int]:
        """Tokens that end a generation. Its text has none of them, whether or not they are special."""
        ends = () if sampling.ignore_eos else self.engine.structure.eos_token_ids
        return frozenset((*ends, *sampling.stop_token_ids))

    def error_of(self, generation: Generation) -> ActographError | None:
        """The sample's error; None if the generation is a result."""
        if generation.error is not None:
            return Interrupted() if generation.finish_reason == "cancelled" else as_error(generation.error)
        match generation.finish_reason:
            case "cancelled":
                return Interrupted()
            case "dropped":
                return JobEnded()
            case "timeout":
                return SampleTimeout(
                    f"the sample was decoded for more than {self.time_limit:g} s (sample_timeout_seconds); "
                    f"it had {len(generation.generated_ids)} tokens then"
                )
        return None


def as_error(error: BaseException) -> ActographError:
    """Any error as a sample's error."""
    if isinstance(error, ActographError):
        return error
    logger.error("a sample failed in the engine: %s", type(error).__name__, exc_info=error)
    return CaptureFailed(f"{type(error).__name__}: {str(error) or 'without a message'}; see the worker's log")
