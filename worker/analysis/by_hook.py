"""Analyses that take hook after hook, each from a matrix of rows."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.contract.analyses import RowsSpec
from actograph.contract.interventions import NewVector
from actograph.contract.readouts import BIAS
from storage.results import matrix
from storage.results.matrix import RowChoice, SessionSource, StoredMatrix
from worker.analysis.run import AnalysisRun, Arrays

#: results of one hook, and its direction [width]
Analysed = tuple[dict[str, Any], NDArray[np.float64]]


@dataclass
class ByHook:
    """Results of the hooks that are done, and the sessions that all hooks read."""

    ids: frozenset[str]
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    directions: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    #: sessions with rows of any hook
    read: set[str] = field(default_factory=set)

    def each(self, run: AnalysisRun, hooks: Sequence[str], analyse: Callable[[str], Analysed]) -> None:
        """Analyse the hooks that are not done yet.

        Raises:
            Interrupted: the analysis must end here.
        """
        for hook in hooks:
            if hook not in self.results:
                self.results[hook], self.directions[hook] = analyse(hook)
                run.step(len(self.results), len(hooks), self._arrays)

    def matrix(
        self, run: AnalysisRun, found: Sequence[SessionSource], hook: str, spec: RowsSpec
    ) -> StoredMatrix:
        """Read the rows of one hook. Raises the errors of `matrix.read`."""
        choice = RowChoice(positions=spec.positions, reduce=spec.reduce, max_bytes=spec.max_bytes)
        rows = matrix.read(run.store, [one for one in found if one.id in self.ids], hook, choice)
        self.skipped.update(rows.skipped)
        self.read.update(piece.source.id for piece in rows.pieces)
        return rows

    def vectors(self, spec: RowsSpec, model: str | None) -> list[NewVector]:
        """The directions as vectors, if the spec wants them."""
        if spec.save_as is None:
            return []
        return [
            NewVector(
                name=spec.save_as,
                hook=hook,
                vector=direction.tolist(),
                model=model,
                metadata={} if (bias := self.results[hook].get(BIAS)) is None else {BIAS: repr(float(bias))},
            )
            for hook, direction in self.directions.items()
        ]

    def _arrays(self) -> Arrays:
        texts = {"results": self.results, "skipped": self.skipped, "read": sorted(self.read)}
        return {
            "ids": np.array(sorted(self.ids)),
            **{name: np.array(json.dumps(value)) for name, value in texts.items()},
            **{f"direction/{hook}": direction for hook, direction in self.directions.items()},
        }

    @classmethod
    def resumed(cls, saved: Arrays | None, ids: Sequence[str]) -> "ByHook":
        """Continue a saved state with its sessions, or begin with these."""
        if saved is None:
            return cls(frozenset(ids))
        texts = {name: json.loads(str(saved[name])) for name in ("results", "skipped", "read")}
        directions = {
            name.removeprefix("direction/"): saved[name] for name in saved if name.startswith("direction/")
        }
        kept = frozenset(saved["ids"].tolist())
        return cls(kept, texts["results"], directions, texts["skipped"], set(texts["read"]))
