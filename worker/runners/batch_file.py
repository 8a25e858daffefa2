"""Batch files: chats whose lines have their own sampling."""

from dataclasses import replace

from actograph.contract.chat_job import BatchInput, ChatInput, is_only_read
from actograph.contract.specs import SamplingSpec
from storage.queue.leases import LeasedSample
from worker.runners.chat import ChatRunner
from worker.runners.runner import Prompt


class BatchFileRunner(ChatRunner):
    """One choice of one line per sample; lines of one form share a runner."""

    def prompt(self, sample: LeasedSample) -> Prompt:
        asked = {name: value for name, value in sample.input.items() if name in ChatInput.model_fields}
        return super().prompt(replace(sample, input=asked))

    def sampling_of(self, sample: LeasedSample) -> SamplingSpec | None:
        if is_only_read(sample.input):
            return None
        return BatchInput.model_validate(sample.input).sampling
