"""Batch files: chats whose lines have their own sampling."""

from dataclasses import replace

from actograph.contract.chat_job import BatchInput, ChatInput, is_only_read
from actograph.contract.specs import SamplingSpec
from storage.queue.leases import LeasedSample
from worker.runners.chat import ChatRunner
from worker.runners.runner import Prompt


class BatchFileRunner(ChatRunner):
    """One choice of one line per sample; lines with equal sampling share a batch."""

    def prompt(self, sample: LeasedSample) -> Prompt:
        asked = {name: value for name, value in sample.input.items() if name in ChatInput.model_fields}
        return super().prompt(replace(sample, input=asked))

    def sampling_of(self, sample: LeasedSample) -> SamplingSpec | None:
        if is_only_read(sample.input):
            return None
        own = BatchInput.model_validate(sample.input).sampling
        # max_tokens may differ within a batch; other differences need another batch
        return own.model_copy(update={"max_tokens": self.sampling.max_tokens})
