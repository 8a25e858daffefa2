"""One pass over the rows of sessions that sums up, and resumes between two sessions."""

import json
from collections.abc import Sequence
from hashlib import sha256
from typing import Protocol

import numpy as np

from actograph.contract.errors import InvalidRequest
from actograph.contract.row_selection import Positions
from worker.analysis.blocks import BLOCK_BYTES, AlignedRows, blocks
from worker.analysis.run import AnalysisRun, Arrays


class Sums(Protocol):
    """Everything that is summed up over blocks of rows."""

    def add(self, block: AlignedRows) -> None:
        """Add a block with rows."""

    def arrays(self) -> Arrays:
        """The sums as arrays, for `restore`."""

    def restore(self, saved: Arrays) -> None:
        """Continue from saved sums of the same hooks."""


class Pass:
    """One pass over the sessions, and how far it has come."""

    def __init__(self, ids: Sequence[str], hooks: Sequence[str], sums: Sums) -> None:
        self.ids, self._hooks, self._sums = ids, hooks, sums
        #: sessions that were read or skipped, and those with rows
        self._done = self.sessions = 0
        self.skipped: dict[str, str] = {}

    def read(
        self,
        run: AnalysisRun,
        positions: Positions,
        *,
        block_bytes: int = BLOCK_BYTES,
        with_token_ids: bool = False,
    ) -> None:
        """Read every selected row once, those of a saved state excepted.

        Raises:
            InvalidRequest: no session has such rows.
            Interrupted: the analysis must end here.
        """
        if (saved := run.saved()) is not None:
            self._resume(saved)
        for block in blocks(
            run.store, self.ids, self._hooks, positions,
            first=self._done, block_bytes=block_bytes, with_token_ids=with_token_ids,
        ):  # fmt: skip
            self._add(block)
            if block.is_last:
                run.step(self._done, len(self.ids), self._arrays)
        if not self.sessions:
            reason = next(iter(self.skipped.values()), "no session matches")
            raise InvalidRequest(f"no session has rows of these hooks: {reason}")

    def _add(self, block: AlignedRows) -> None:
        if block.skipped is None:
            self._sums.add(block)
            self.sessions += block.is_last
        else:
            self.skipped[self.ids[block.session]] = block.skipped
        self._done += block.is_last

    def _arrays(self) -> Arrays:
        """The state between two sessions."""
        state = {"done": self._done, "sessions": self.sessions, "digest": self._digest(self._done)}
        text = json.dumps(state | {"skipped": self.skipped})
        return {"state": np.array(text), **self._sums.arrays()}

    def _resume(self, saved: Arrays) -> None:
        """Continue from a saved state, unless sessions that it has read are gone."""
        state = json.loads(str(saved["state"]))
        if state["digest"] == self._digest(state["done"]):
            self._done, self.sessions = state["done"], state["sessions"]
            self.skipped = state["skipped"]
            self._sums.restore(saved)

    def _digest(self, done: int) -> str:
        """Digest of the first sessions, and of the hooks."""
        return sha256("\n".join([*self.ids[:done], *self._hooks]).encode()).hexdigest()
