"""Rows of a dataset on the Hugging Face Hub."""

from pathlib import Path

import datasets

from actograph.contract.errors import InvalidDataset
from actograph.contract.specs import HubDataset
from actograph.datasets.dataset_rows import DatasetRow, RowReader, TextRow, check_rows, check_texts


def load_hub_rows(
    dataset: HubDataset,
    *,
    limit: int | None = None,
    offset: int = 0,
    require_gold: bool = True,
    reader: RowReader | None = None,
) -> list[DatasetRow]:
    """Rows of a split, from the Hub or from the cache of an earlier download.

    Raises:
        InvalidDataset: if the name is not a Hub id, the Hub cannot be reached, it has no such
            dataset, config or split, or a row is not what the task reads.
    """
    rows = _split(dataset)
    return check_rows(rows, limit=limit, offset=offset, require_gold=require_gold, reader=reader)


def load_hub_texts(
    dataset: HubDataset, field: str, *, limit: int | None = None, offset: int = 0
) -> list[TextRow]:
    """`field` of rows of a split.

    Raises:
        InvalidDataset: as `load_hub_rows` does, or if a row has no such text.
    """
    return check_texts(_split(dataset), field, limit=limit, offset=offset)


def _split(dataset: HubDataset) -> datasets.Dataset:
    _check_hub_id(dataset.hub)
    name = f"{dataset.hub} (config {dataset.config or 'default'}, split {dataset.split})"
    try:
        rows = datasets.load_dataset(dataset.hub, dataset.config, split=dataset.split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        # ConnectionError and FileNotFoundError are OSErrors, as are the Hub's HTTP errors.
        raise InvalidDataset(
            f"dataset {name} cannot be loaded: {error}; check name, config and split and that the worker "
            "reaches huggingface.co, or upload the rows through /v1/files and name them by file_id",
            param="dataset",
        ) from error
    if not isinstance(rows, datasets.Dataset):
        raise InvalidDataset(f"dataset {name} is not one split of rows", param="dataset")
    return rows


def _check_hub_id(name: str) -> None:
    """Refuse a name that `load_dataset` would read as a local folder."""
    if Path(name).exists():
        raise InvalidDataset(
            f"{name!r} is also a folder in the worker's working directory; start the worker elsewhere",
            param="dataset",
        )
