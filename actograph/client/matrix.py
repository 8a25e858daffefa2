"""Rows of many sessions as one matrix, with the label and origin of every row; samples as a data frame."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.client.errors import package
from actograph.contract.errors import InvalidRequest, MixedIdentities
from actograph.contract.models import short
from actograph.contract.resources import Sample, Session
from actograph.tensor_files import Array

_SAMPLE_COLUMNS = (
    "id", "index", "condition", "epoch", "status", "prompt", "completion", "finish_reason", "prompt_tokens",
    "generated_tokens", "seed", "attempts", "session_id", "started_at", "finished_at",
)  # fmt: skip


@dataclass(frozen=True)
class Skipped:
    """A session without rows, and the reason."""

    session_id: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """`features` [n, width] of one hook, and the origin of each of the n rows.

    `labels` [n] is float64, NaN if the session has no verdict. `tokens` [n] is the token index of the row, -1
    for a summary of several tokens. `condition` and `session_id` are object arrays of strings, `sample_index`
    and `epoch` int64. Rows are in the order of their sessions, oldest first.
    """

    hook: str
    features: Array
    labels: NDArray[np.float64]
    tokens: NDArray[np.int64]
    sample_index: NDArray[np.int64]
    epoch: NDArray[np.int64]
    condition: NDArray[np.object_]
    session_id: NDArray[np.object_]
    skipped: list[Skipped]

    def __len__(self) -> int:
        return len(self.features)

    def __repr__(self) -> str:
        told = f", {len(self.skipped)} sessions skipped" if self.skipped else ""
        return f"Matrix({self.hook}, features {list(self.features.shape)} {self.features.dtype}{told})"

    def torch(self) -> tuple[Any, Any]:
        """Return (features, labels) as `torch.Tensor`, labels in float32. Raises PackageMissing."""
        torch = package("torch", "a torch tensor")
        return torch.from_numpy(self.features), torch.from_numpy(self.labels).to(torch.float32)

    def frame(self) -> Any:
        """Return a `pandas.DataFrame` without the features, one line per row. Raises PackageMissing."""
        columns = {name: getattr(self, name) for name in ("session_id", "sample_index", "condition", "epoch")}
        columns |= {"token": self.tokens, "label": self.labels}
        return package("pandas", "a data frame").DataFrame(columns)


@dataclass(frozen=True)
class Piece:
    """Rows [k, width] of one session, and the token of each."""

    session: Session
    rows: Array
    tokens: Sequence[int]


class Gathered:
    """Collects the pieces of a matrix, within `max_bytes`."""

    def __init__(self, hook: str, max_bytes: int) -> None:
        self.skipped: list[Skipped] = []
        self._hook = hook
        self._max_bytes = max_bytes
        self._pieces: deque[Piece] = deque()
        self._bytes = 0

    @property
    def sessions(self) -> list[Session]:
        """Sessions with rows."""
        return [piece.session for piece in self._pieces]

    def add(self, piece: Piece | Skipped) -> None:
        """Add one session's rows.

        Raises:
            InvalidRequest: `max_bytes` is exceeded, or the width differs from earlier sessions.
            MixedIdentities: the model differs from earlier sessions.
        """
        if isinstance(piece, Skipped):
            self.skipped.append(piece)
            return
        first = self._pieces[0] if self._pieces else piece
        one, other = first.session, piece.session
        if one.identity_sha256 != other.identity_sha256:
            raise MixedIdentities(
                f"sessions {one.id} and {other.id} were recorded with different models (identities "
                f"{short(one.identity_sha256)} and {short(other.identity_sha256)}); "
                "choose sessions of one model by the filters"
            )
        self._bytes += piece.rows.nbytes
        if self._bytes > self._max_bytes:
            raise InvalidRequest(
                f"the rows of {len(self._pieces) + 1} sessions take more than max_bytes={self._max_bytes}; "
                "choose fewer (positions, condition, limit), reduce='mean', or raise max_bytes",
                param="max_bytes",
            )
        if first.rows.shape[1] != piece.rows.shape[1]:
            raise InvalidRequest(
                f"{self._hook} is {piece.rows.shape[1]} wide in session {other.id}, "
                f"{first.rows.shape[1]} in others: choose one model"
            )
        self._pieces.append(piece)

    def matrix(self, labels: Sequence[float]) -> Matrix:
        """Build the matrix. `labels`: one per piece, in order."""
        pieces, sessions = self._pieces, self.sessions
        counts = [len(piece.tokens) for piece in pieces]
        width, kind = pieces[0].rows.shape[1], np.result_type(*{piece.rows.dtype for piece in pieces})
        features = np.empty((sum(counts), width), kind)
        tokens = np.empty(len(features), np.int64)
        at = 0
        while pieces:  # frees each piece after copying
            piece = pieces.popleft()
            tokens[at : at + len(piece.tokens)] = piece.tokens
            features[at : at + len(piece.tokens)] = piece.rows
            at += len(piece.tokens)

        def spread(values: Sequence[Any], dtype: Any) -> Any:
            return np.repeat(np.array(values, dtype), counts)

        return Matrix(
            hook=self._hook,
            features=features,
            labels=spread(labels, np.float64),
            tokens=tokens,
            sample_index=spread([session.sample_index for session in sessions], np.int64),
            epoch=spread([session.epoch for session in sessions], np.int64),
            condition=spread([session.condition for session in sessions], object),
            session_id=spread([session.id for session in sessions], object),
            skipped=self.skipped,
        )


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
