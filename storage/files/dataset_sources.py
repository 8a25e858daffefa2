"""Rows of a dataset that was uploaded or is under an allowed data root.

Only workers read Hub datasets, with the `datasets` library.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from actograph.contract.errors import InvalidDataset, NotFound
from actograph.contract.specs import FileDataset, PathDataset
from evals.dataset_readers import format_of, records_of
from evals.dataset_rows import DatasetRow, RowForm, checked
from storage.artifacts.store import ArtifactStore
from storage.files import files
from storage.index.database import Database
from storage.index.pages import full_id


@dataclass(frozen=True)
class Uploads:
    """Uploaded files: their records in the index and their bytes in the store."""

    database: Database
    store: ArtifactStore

    def open(self, file_id: str) -> BinaryIO:
        """The bytes of a file, verified. Raises InvalidDataset if there is no such file."""
        missing = InvalidDataset(f"no file {file_id}", param="dataset.file_id")
        try:
            with self.database.read() as session:
                row = files.get(session, full_id(session, file_id, "file"))
            self.store.size(f"files/{row.id}")
        except NotFound as error:
            raise missing from error
        file = files.stored(row, self.store)
        file.check_whole()
        return file.open()


def read(
    ref: FileDataset | PathDataset,
    uploads: Uploads,
    data_roots: Sequence[str],
    form: RowForm,
    *,
    limit: int | None = None,
    offset: int = 0,
) -> Iterator[DatasetRow]:
    """Rows `offset` to `offset + limit` of the dataset, checked and read one at a time.

    Raises:
        InvalidDataset: no such file, a path outside the data roots, or a bad row (named).
        StoreDamaged: an upload is not what was uploaded.
    """
    with _opened(ref, uploads, data_roots) as (file, written):
        records = records_of(file, written, start=offset, columns=form.columns, required=form.required)
        yield from checked(records, form, limit=limit, offset=offset)


@contextmanager
def _opened(
    ref: FileDataset | PathDataset, uploads: Uploads, data_roots: Sequence[str]
) -> Iterator[tuple[BinaryIO, str]]:
    """The bytes of a dataset, and its format."""
    if isinstance(ref, FileDataset):
        yield uploads.open(ref.file_id), ref.format or "jsonl"
        return
    with allowed_path(ref.path, data_roots).open("rb") as file:
        yield file, ref.format or format_of(ref.path)


def allowed_path(path: str, data_roots: Sequence[str]) -> Path:
    """The file at `path`, with links followed, if it is under a data root.

    Raises:
        InvalidDataset: outside all roots, missing, or not a file. One message for all three reveals nothing
            about the server's disk.
    """
    refusal = InvalidDataset(
        f"{path}: no such file under the server's data roots (ACTOGRAPH_DATA_ROOTS)", param="dataset.path"
    )
    if "\0" in path:
        raise refusal
    roots = [Path(root).resolve() for root in data_roots]
    given = Path(path)
    candidates = [given] if given.is_absolute() else [root / given for root in roots]
    for candidate in candidates:
        try:
            resolved = candidate.resolve(strict=True)
        except (OSError, RuntimeError):
            continue
        if resolved.is_file() and any(resolved.is_relative_to(root) for root in roots):
            return resolved
    raise refusal
