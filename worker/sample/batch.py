"""One batch of samples, from prompts to recorded sessions.

Nothing here writes to the index. A sample that fails has its reason in its outcome; the others go on.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import replace

from actograph.contract.errors import ActographError, ContextLengthExceeded
from actograph.contract.specs import SamplingSpec
from storage.artifacts.store import ArtifactStore
from storage.queue.leases import LeasedSample
from worker.engine.model.device_errors import is_device_lost
from worker.engine.model.memory import memory_snapshot
from worker.sample.generation import BatchGenerator, RunningLeases, as_error
from worker.sample.outcome import Outcome
from worker.sample.recording import BatchRecorder, Recorded
from worker.sample.turn_loop import TurnLoop
from worker.sample.unforeseen import unforeseen
from worker.sample.watched_store import watched

logger = logging.getLogger(__name__)


class BatchRunner:
    """Runs the batches of one job during one slice.

    Attributes:
        memory: bytes before and after the last batch.
    """

    def __init__(self, store: ArtifactStore, generator: BatchGenerator) -> None:
        self.generator = generator
        self.memory: dict[str, int] = {}
        self._store = store
        self._runner = generator.runner

    def run(self, leases: Sequence[LeasedSample], keeper: RunningLeases) -> list[Outcome]:
        """Outcomes of all samples, in order; samples cut short by `keeper` have the error `Interrupted`.

        Session files of completed samples are in the store when this returns.

        Raises:
            Exception: the device is lost (`is_device_lost`); only a new process helps.
        """
        outcomes = {lease.id: self._prompted(lease, keeper) for lease in leases}
        runnable = [o for o in outcomes.values() if o.error is None]
        if runnable:
            recorder = self._recorder(runnable, keeper)
            try:
                ran = self._turns(runnable, recorder, keeper)
                # before any session is stored: a sample that cannot be scored keeps none
                ran = [self._scored(o, keeper) for o in ran]
                if recorder is not None:
                    ran = _with_sessions(ran, recorder)
            finally:
                if recorder is not None:
                    recorder.discard()
            outcomes |= {o.lease.id: o for o in ran}
        return [outcomes[lease.id] for lease in leases]

    def _recorder(self, runnable: Sequence[Outcome], keeper: RunningLeases) -> BatchRecorder | None:
        """Recorder of a batch; None if nothing is captured."""
        if self.generator.provenance is None:
            return None
        cut = {i: o.prompt.truncated_from for i, o in enumerate(runnable) if o.prompt}
        return BatchRecorder(
            watched(self._store, keeper.progress),
            [o.lease for o in runnable],
            self.generator.provenance,
            {i: tokens for i, tokens in cut.items() if tokens is not None},
            [self._sampling_of(o) for o in runnable],
        )

    def _turns(
        self, runnable: Sequence[Outcome], recorder: BatchRecorder | None, keeper: RunningLeases
    ) -> list[Outcome]:
        """Outcomes with their generations or errors; an error of the batch is the error of each sample."""
        devices = self.generator.engine.model.devices
        before, started = memory_snapshot(devices), time.monotonic()
        try:
            ran = TurnLoop(self.generator, recorder, keeper).run(runnable)
        except Exception as error:
            if is_device_lost(error):
                raise
            logger.exception("a batch of job %s failed", runnable[0].lease.job_id)
            return [replace(o, error=as_error(error)) for o in runnable]
        after, seconds = memory_snapshot(devices), time.monotonic() - started
        self.memory = {f"batch_before_{key}": size for key, size in before.items()}
        self.memory |= {f"batch_after_{key}": size for key, size in after.items()}
        logger.info(
            "batch of %d ran %.1f s; memory before %s, after %s", len(runnable), seconds, before, after
        )
        return ran

    def _sampling_of(self, outcome: Outcome) -> SamplingSpec | None:
        """The sampling of one sample, with its own `max_tokens`."""
        sampling, prompt = self._runner.sampling_of(outcome.lease), outcome.prompt
        if sampling is None or prompt is None or prompt.max_tokens is None:
            return sampling
        return sampling.model_copy(update={"max_tokens": prompt.max_tokens})

    def _prompted(self, lease: LeasedSample, keeper: RunningLeases) -> Outcome:
        keeper.progress()
        try:
            prompt = self._runner.prompt(lease)
        except ActographError as error:
            return Outcome(lease=lease, error=error)
        except Exception as error:  # noqa: BLE001 (it fails this sample alone, and the log has the trace)
            return Outcome(lease=lease, error=_unforeseen(error, "prompted", lease))
        self.generator.note_prompt(len(prompt.token_ids))
        context = self.generator.context_length
        max_tokens = self._runner.sampling.max_tokens if self._runner.sampling else 0
        max_tokens = max_tokens if prompt.max_tokens is None else prompt.max_tokens
        if len(prompt.token_ids) + max_tokens > context:
            more = f" and max_tokens {max_tokens} together exceed" if max_tokens else " exceed"
            hint = "" if max_tokens else "; truncate: true cuts it"
            too_long = ContextLengthExceeded(
                f"the prompt's {len(prompt.token_ids)} tokens{more} the model's context of {context} "
                f"tokens{hint}"
            )
            return Outcome(lease=lease, prompt=prompt, error=too_long)
        return Outcome(lease=lease, prompt=prompt)

    def _scored(self, outcome: Outcome, keeper: RunningLeases) -> Outcome:
        keeper.progress()
        if outcome.error is not None or outcome.generation is None:
            return outcome
        begun = outcome.prompt.begun if outcome.prompt else ""
        try:
            completion = begun + self._runner.completion(outcome.lease, outcome.generation.generated_ids)
            scores = self._runner.score(outcome.lease, completion, outcome.generated_tokens)
            logprobs = self._runner.logprobs(outcome.lease, outcome.generation)
        except ActographError as error:
            return replace(outcome, error=error)
        except Exception as error:  # noqa: BLE001 (it fails this sample alone, and the log has the trace)
            return replace(outcome, error=_unforeseen(error, "scored", outcome.lease))
        return replace(outcome, completion=completion, scores=scores, logprobs=logprobs)


def _unforeseen(error: Exception, done: str, lease: LeasedSample) -> ActographError:
    return unforeseen(error, f"while sample {lease.id} was {done}")


def _with_sessions(outcomes: Sequence[Outcome], recorder: BatchRecorder) -> list[Outcome]:
    """Store the sessions of samples without an error; a sample fails if its session cannot be stored."""
    good = {i: o.conversation for i, o in enumerate(outcomes) if o.error is None and o.conversation}
    sessions = recorder.finish(good)
    updated = list(outcomes)
    for i, session in sessions.items():
        if isinstance(session, Recorded):
            updated[i] = replace(outcomes[i], recorded=session)
        else:
            updated[i] = replace(outcomes[i], error=session)
    return updated
