"""Prefill of samples without generation: rows of every token, and their log probabilities."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from actograph.contract.plans.prefill_plan import PrefillPlan
from actograph.contract.specs import CaptureSpec
from worker.engine.engine import Engine
from worker.engine.requests import BufferOptions, Generation, GenerationRequest, RowSink
from worker.sample.recording import Provenance


@dataclass(frozen=True, kw_only=True)
class PromptReader:
    """Reads the prompts of one job's batches, or of chats that share a batch.

    Attributes:
        origin: None if nothing is captured.
        most: samples per batch; 0: the device's default.
    """

    engine: Engine
    origin: Provenance | None
    options: BufferOptions
    most: int = 0

    def plan(self, *, prompt_tokens: int) -> PrefillPlan:
        """Texts to read at once, and their memory."""
        return self.engine.plan_prefill(
            self.origin.hooks if self.origin else (),
            self.origin.capture if self.origin else CaptureSpec(),
            prompt_tokens=prompt_tokens,
            options=self.options,
            most=self.most,
        )

    def read(
        self,
        requests: Sequence[GenerationRequest],
        sink: RowSink | None,
        *,
        should_stop: Callable[[], bool],
        on_step: Callable[[int], None],
    ) -> list[Generation]:
        """A generation without tokens for each request, with finish reason "stop" if all went well.

        Rows and log probabilities come from a pass each, since a pass for rows ends after its last hook.
        """
        made = [_unread(request) for request in requests]
        if self.origin is not None and sink is not None:
            made = self.engine.prefill(
                requests,
                hooks=self.origin.hooks,
                sink=sink,
                positions=self.origin.positions,
                dtype=self.origin.capture.dtype,
                shaping=self.origin.shaping,
                should_stop=should_stop,
                on_step=on_step,
                options=self.options,
            )
        asked = [
            place
            for place, request in enumerate(requests)
            if request.score_prompt and made[place].finish_reason == "stop" and made[place].error is None
        ]
        scored = self.engine.score([requests[place] for place in asked], should_stop=should_stop)
        for place, found in zip(asked, scored, strict=True):
            made[place] = replace(
                made[place],
                prompt_logprobs=found.prompt_logprobs,
                finish_reason=found.finish_reason,
                error=found.error,
            )
        return made


def _unread(request: GenerationRequest) -> Generation:
    return Generation(key=request.key, prompt_ids=request.prompt_ids, generated_ids=(), finish_reason="stop")
