"""Rows of many sessions as one matrix, with the label and origin of every row; samples as a data frame."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import Any, BinaryIO, TypedDict

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from actograph.client.errors import UnexpectedAnswer
from actograph.client.sessions import SessionFilters
from actograph.client.transport import LONG_SECONDS, Transport
from actograph.contract.errors import package
from actograph.contract.job_options import Positions
from actograph.contract.resources import Sample
from actograph.contract.row_selection import Reduce
from actograph.tensor_files import Array
from actograph.viewer.notebook import MOST_POINTS, summary_html

#: labels that a notebook shows, and letters of each
MOST_LABELS, MOST_LETTERS = 10, 100


class JobMatrixOptions(TypedDict, total=False):
    """Rows to read, and filters of a job's sessions; see `JobHandle.matrix`."""

    condition: str | None
    sample_index: int | None
    correct: bool | None
    tag: str | None
    positions: Positions
    reduce: Reduce
    label: str
    groups: str
    epoch: int | None
    limit: int | None
    max_bytes: int | None


class MatrixOptions(SessionFilters, JobMatrixOptions, total=False):
    """Rows to read, and filters of sessions of all jobs."""


_SAMPLE_COLUMNS = (
    "id", "sample_index", "condition", "epoch", "status", "prompt", "completion", "finish_reason",
    "prompt_tokens", "generated_tokens", "seed", "losses", "session_id", "started_at", "finished_at",
)  # fmt: skip


@dataclass(frozen=True)
class Skipped:
    """A session without rows, and the reason."""

    session_id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """`features` [n, width] of one hook, and the origin of each of the n rows.

    `labels` [n] is float64, NaN if the session has no label; labels that are texts are strings, "" without
    one. `groups` [n] are values of the chosen column, by default `sample_index`: keep rows of one group on
    one side of a split, as `GroupKFold` does. `tokens` [n] is the token index of the row, -1 for a summary of
    several tokens. `condition` and `session_id` are strings, `sample_index` and `epoch` int64. Rows are in
    the order of problem, condition and epoch.
    """

    hook: str
    features: Array
    labels: Array
    groups: Array
    tokens: NDArray[np.int64]
    sample_index: NDArray[np.int64]
    epoch: NDArray[np.int64]
    condition: NDArray[np.str_]
    session_id: NDArray[np.str_]
    skipped: list[Skipped]

    @classmethod
    def load(cls, file: BinaryIO) -> "Matrix":
        """Read an .npz file of the service. Raises UnexpectedAnswer."""
        try:
            with np.load(file, allow_pickle=False) as found:
                arrays: dict[str, Any] = dict(found)
            skipped = [Skipped(**one) for one in json.loads(str(arrays.pop("skipped")))]
            return cls(hook=str(arrays.pop("hook")), skipped=skipped, **arrays)
        except (ValueError, OSError, KeyError, TypeError) as error:
            raise UnexpectedAnswer(f"the service's matrix cannot be read: {error}") from error

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        skipped = f", {len(self.skipped)} sessions skipped" if self.skipped else ""
        return f"Matrix({self.hook}, features {list(self.features.shape)} {self.features.dtype}{skipped})"

    def _repr_html_(self) -> str:
        """Shape, labels and origin, and a line through the norms of rows at equal distances."""
        count, width = self.features.shape
        sessions = len(np.unique(self.session_id))
        about = f"{self.hook} · features [{count}, {width}] {self.features.dtype} · {sessions} sessions"
        chosen = np.unique(np.linspace(0, max(0, count - 1), min(count, MOST_POINTS)).astype(int))
        norms = np.linalg.norm(self.features[chosen].astype(np.float64), axis=1).astype(np.float32)
        every = "" if len(chosen) == count else f" {len(chosen)} of"
        notes = [f"{len(np.unique(self.groups))} groups"]
        if self.skipped:
            first = self.skipped[0]
            notes.append(f"{len(self.skipped)} sessions were skipped, the first: {first.reason}")
        return summary_html(about, norms, f"norms of{every} {count} rows", notes, self._label_counts())

    def _label_counts(self) -> list[tuple[str, str]]:
        """Rows of each label; of many labels, the most frequent ones."""
        values, counts = np.unique(self.labels, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        lines = [(_label_text(values[at]), f"{counts[at]:,}") for at in order[:MOST_LABELS]]
        if len(values) > MOST_LABELS:
            lines.append((f"{len(values) - MOST_LABELS:,} more", f"{counts[order[MOST_LABELS:]].sum():,}"))
        return lines

    def torch(self) -> tuple[Any, Any]:
        """Return (features, labels) as `torch.Tensor`, labels in float32. Raises PackageMissing."""
        torch = package("torch", "a torch tensor")
        return torch.from_numpy(self.features), torch.from_numpy(self.labels).to(torch.float32)

    def frame(self) -> Any:
        """Return a `pandas.DataFrame` without the features, one line per row. Raises PackageMissing."""
        return package("pandas", "a data frame").DataFrame(self._columns)

    def to_dataset(self) -> Any:
        """Return a `datasets.Dataset` with `features` too; its `save_to_disk` writes a folder.

        Raises:
            PackageMissing: Hugging Face's datasets is not installed.
        """
        columns = {**self._columns, "features": self.features}
        return package("datasets", "a Hugging Face dataset").Dataset.from_dict(columns)

    @property
    def _columns(self) -> dict[str, Array]:
        names = ("session_id", "sample_index", "condition", "epoch", "groups")
        columns = {name.removesuffix("s"): getattr(self, name) for name in names}
        return columns | {"token": self.tokens, "label": self.labels}


def _label_text(value: Any) -> str:
    """A label as text."""
    if isinstance(value, str):
        return value[:MOST_LETTERS] or "no label"
    return "no label" if np.isnan(value) else f"{value:.4g}"


def fetch(transport: Transport, path: str, hook: str, wanted: JobMatrixOptions | MatrixOptions) -> Matrix:
    """Request a matrix."""
    asked: dict[str, Any] = {**wanted, "hook": hook}
    positions = asked.get("positions", "last_prompt")
    if isinstance(positions, BaseModel):
        positions = positions.model_dump()
    asked["positions"] = positions if isinstance(positions, str) else json.dumps(positions)
    with TemporaryFile() as file:
        transport.download(path, file, params=asked, read_timeout=LONG_SECONDS)
        file.seek(0)
        return Matrix.load(file)


def samples_frame(samples: Iterable[Sample]) -> Any:
    """Return a `pandas.DataFrame` of samples; see `JobHandle.frame`. Raises PackageMissing."""
    lines, scores = [], dict[str, None]()
    for sample in samples:
        line = {name: getattr(sample, name) for name in _SAMPLE_COLUMNS}
        line["status"] = str(sample.status)
        line["error"] = sample.error.message if sample.error else None
        line.update({key: score.value for key, score in sample.scores.items()})
        scores.update(dict.fromkeys(sample.scores))
        lines.append(line)
    columns = [*_SAMPLE_COLUMNS, "error", *scores]
    return package("pandas", "a data frame").DataFrame(lines, columns=columns)
