"""Labels of samples in an uploaded file, by the columns that name a sample."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from actograph.contract.errors import InvalidDataset
from actograph.contract.specs import FileDataset
from storage.files.dataset_sources import Uploads, read_records

#: columns that name a sample
KEYS = ("sample_id", "job_id", "sample_index", "condition", "epoch")
MAX_ROWS = 1_000_000


@dataclass(frozen=True)
class SampleLabels:
    """Labels of samples.

    Attributes:
        columns: those of `KEYS` that the file has.
        labels: values of these columns as texts -> label.
    """

    columns: tuple[str, ...]
    labels: Mapping[tuple[str, ...], Any]

    def of(self, sample: Mapping[str, object]) -> Any:
        """Label of the sample with these values of `KEYS`; None without one."""
        return self.labels.get(tuple(str(sample[name]) for name in self.columns))


def read(file: FileDataset, column: str, uploads: Uploads) -> SampleLabels:
    """Read the labels in `column`. Rows whose label is empty or null are left out.

    Raises:
        InvalidDataset: the file has no such column, or none that names samples; a row cannot be read, or two
            rows of one sample differ.
    """
    found: dict[tuple[str, ...], Any] = {}
    columns: tuple[str, ...] = ()
    with read_records(file, (*KEYS, column), (column,), uploads) as records:
        for number, record in enumerate(records):
            if isinstance(record, InvalidDataset):
                raise _fault(number, record.message)
            if not isinstance(record, Mapping):
                raise _fault(number, "is not an object")
            if number == 0:
                columns = _columns(record)
            if number >= MAX_ROWS:
                raise InvalidDataset(f"the file of labels has more than {MAX_ROWS:,} rows", param="dataset")
            _add(found, number, record, columns, column)
    if not found:
        raise InvalidDataset(f"the file has no label in column {column!r}", param="dataset")
    return SampleLabels(columns, found)


def _columns(record: Mapping[str, Any]) -> tuple[str, ...]:
    columns = tuple(name for name in KEYS if record.get(name) is not None)
    if not {"sample_id", "sample_index"} & set(columns):
        raise InvalidDataset("the file of labels needs a column sample_index or sample_id", param="dataset")
    return columns


def _add(
    found: dict[tuple[str, ...], Any],
    number: int,
    record: Mapping[str, Any],
    columns: tuple[str, ...],
    column: str,
) -> None:
    if missing := [name for name in (*columns, column) if name not in record]:
        raise _fault(number, f"{missing[0]} is missing")
    label = record[column]
    if isinstance(label, str):
        label = label.strip()
    if label is None or label == "":
        return
    if not isinstance(label, str | int | float):
        raise _fault(number, f"{column} is neither a text nor a number")
    key = tuple(str(record[name]).strip() for name in columns)
    if found.setdefault(key, label) != label:
        raise _fault(number, "another row gives the same sample another label")


def _fault(number: int, reason: str) -> InvalidDataset:
    return InvalidDataset(f"row {number}: {reason}", param="dataset")
