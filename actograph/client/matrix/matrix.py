"""Rows of many sessions as one matrix, with the label and origin of every row."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.client.optional import package
from actograph.contract.errors import InvalidRequest, MixedIdentities
from actograph.contract.models.model_identity import short
from actograph.contract.resources import Session
from actograph.tensor_files import Array

#: token index of a row that summarizes several tokens
SEVERAL_TOKENS = -1


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
        columns = ("session_id", "sample_index", "condition", "epoch", "tokens", "labels")
        renamed = {"tokens": "token", "labels": "label"}
        data = {renamed.get(name, name): getattr(self, name) for name in columns}
        return package("pandas", "a data frame").DataFrame(data)


@dataclass(frozen=True)
class Piece:
    """Rows [k, width] of one session, and the token of each."""

    session: Session
    rows: Array
    tokens: Sequence[int]


@dataclass
class Gathered:
    """Collects the pieces of a matrix, within `max_bytes`."""

    hook: str
    max_bytes: int
    skipped: list[Skipped] = field(default_factory=list)
    _pieces: deque[Piece] = field(default_factory=deque)
    _bytes: int = 0

    def add(self, piece: Piece | Skipped) -> None:
        """Add one session's rows.

        Raises:
            InvalidRequest: `max_bytes` is exceeded, or the width differs from earlier sessions.
            MixedIdentities: the model differs from earlier sessions.
        """
        if isinstance(piece, Skipped):
            self.skipped.append(piece)
            return
        self._check_identity(piece.session)
        self._bytes += piece.rows.nbytes
        if self._bytes > self.max_bytes:
            raise InvalidRequest(
                f"the rows of {len(self._pieces) + 1} sessions take more than max_bytes={self.max_bytes}; "
                "choose fewer (positions, condition, limit), reduce='mean', or raise max_bytes",
                param="max_bytes",
            )
        if self._pieces and self._pieces[0].rows.shape[1] != piece.rows.shape[1]:
            raise InvalidRequest(
                f"{self.hook} is {piece.rows.shape[1]} wide in session {piece.session.id}, "
                f"{self._pieces[0].rows.shape[1]} in others: choose one model"
            )
        self._pieces.append(piece)

    def _check_identity(self, session: Session) -> None:
        if not self._pieces:
            return
        first = self._pieces[0].session
        if session.identity_sha256 != first.identity_sha256:
            raise MixedIdentities(
                f"sessions {first.id} and {session.id} were recorded with different models (identities "
                f"{short(first.identity_sha256)} and {short(session.identity_sha256)}); "
                "choose sessions of one model by the filters"
            )

    def matrix(self, labels: Sequence[float]) -> Matrix:
        """Build the matrix. `labels`: one per piece, in order."""
        pieces = self._pieces
        counts = [len(piece.tokens) for piece in pieces]
        sessions = [piece.session for piece in pieces]
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
            hook=self.hook,
            features=features,
            labels=spread(labels, np.float64),
            tokens=tokens,
            sample_index=spread([session.sample_index for session in sessions], np.int64),
            epoch=spread([session.epoch for session in sessions], np.int64),
            condition=spread([session.condition for session in sessions], object),
            session_id=spread([session.id for session in sessions], object),
            skipped=self.skipped,
        )

    @property
    def sessions(self) -> list[Session]:
        """Sessions with rows."""
        return [piece.session for piece in self._pieces]
