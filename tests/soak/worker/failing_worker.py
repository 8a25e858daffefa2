"""A real worker whose device is lost in every batch that holds a prompt with the word "poison".

python -m tests.soak.worker.failing_worker
"""

import sys
from collections.abc import Sequence

import torch

from tests.support import null_worker
from tests.support.null_engine import NullEngine
from worker.__main__ import main
from worker.engine.requests import Generation
from worker.engine.runs import RunRequest, Sink


class FailingEngine(NullEngine):
    """The null engine on a device that breaks."""

    _is_lost = False

    def answer(self, requests: Sequence[RunRequest], sink: Sink | None) -> list[Generation]:
        texts = [self.model.tokenizer.decode(request.prompt) for request in requests]
        if self._is_lost or any("poison" in text for text in texts):
            # as on a GPU: once the context is corrupted, every later call fails too
            self._is_lost = True
            raise torch.AcceleratorError("CUDA error: device-side assert triggered")
        return super().answer(requests, sink)


# the child process imports this module again
null_worker.NullEngine = FailingEngine  # type: ignore[attr-defined]

if __name__ == "__main__":
    sys.exit(main())
