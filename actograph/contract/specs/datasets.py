"""Datasets: an uploaded file, a path on the server, or a dataset on the Hub."""

from typing import Annotated, Literal

from pydantic import Field

from actograph.contract.specs.base import Spec

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


DatasetRef = FileDataset | PathDataset | HubDataset
