"""A real worker whose device is lost in every batch that holds a prompt with the word "poison".

python -m tests.soak.worker.failing_worker
"""

import sys
from collections.abc import Sequence

from actograph.contract.errors import DeviceLost
from tests.support import null_worker
from tests.support.null_engine import NullEngine
from worker.__main__ import main
from worker.engine.messages import Generation, Request, Sink


class FailingEngine(NullEngine):
    """The null engine on a device that breaks."""

    _is_lost = False

    def answer(self, requests: Sequence[Request], sink: Sink | None) -> list[Generation]:
        texts = [self.tokenizer.decode(request.prompt_ids) for request in requests]
        if self._is_lost or any("poison" in text for text in texts):
            # as on a GPU: once the context is corrupted, every later call fails too
            self._is_lost = True
            raise DeviceLost("CUDA error: device-side assert triggered")
        return super().answer(requests, sink)


null_worker.NullEngine = FailingEngine  # type: ignore[attr-defined]

if __name__ == "__main__":
    sys.exit(main())
