"""Datasets: an uploaded file, a path on the server, or a dataset on the Hub."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from actograph.contract.base import Spec

DatasetFormat = Literal["jsonl", "csv", "parquet"]
Format = Annotated[
    DatasetFormat | None,
    Field(description="null takes the format from the file's name: .csv, .parquet, otherwise JSONL."),
]


class FileDataset(Spec):
    """A file of rows uploaded through /v1/files."""

    file_id: str = Field(pattern=r"^file_[0-9a-f]{32}$", description="Id of the upload.")
    format: Format = None


class PathDataset(Spec):
    """A file of rows on the server, under one of the allowed data roots."""

    path: str = Field(min_length=1, max_length=4096, description="Path below a data root.")
    format: Format = None


class HubDataset(Spec):
    """A dataset on the Hugging Face Hub."""

    hub: str = Field(
        max_length=256, pattern=r"^[A-Za-z0-9_][\w.\-]*/[A-Za-z0-9_][\w.\-]*$", description="`owner/name`"
    )
    config: str | None = Field(None, max_length=256, description="Configuration of the dataset.")
    split: str = Field("test", max_length=256, description="Split of the dataset.")


_KINDS = {"file_id": "FileDataset", "path": "PathDataset", "hub": "HubDataset"}


def _kind(value: Any) -> str | None:
    """The class of a dataset, by the one field that names it."""
    if not isinstance(value, dict):
        return type(value).__name__
    named = [kind for field, kind in _KINDS.items() if field in value]
    return named[0] if len(named) == 1 else None


DatasetRef = Annotated[
    Annotated[FileDataset, Tag("FileDataset")]
    | Annotated[PathDataset, Tag("PathDataset")]
    | Annotated[HubDataset, Tag("HubDataset")],
    Discriminator(
        _kind,
        custom_error_type="dataset_kind",
        custom_error_message=f"give exactly one of {', '.join(_KINDS)}",
    ),
]
