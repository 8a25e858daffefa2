"""Datasets of a job: uploads, files of the data folders, the Hugging Face Hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actograph.contract.errors import InvalidDataset
from actograph.contract.job_specs import CaptureJobSpec, EvaluationSpec
from actograph.contract.specs import DatasetRef, HubDataset
from evals.dataset_readers import from_row
from evals.dataset_rows import DatasetRow, RowForm, Texts, checked
from evals.task_rows import row_form
from storage.files import dataset_sources
from storage.files.dataset_sources import Uploads


class DatasetReader:
    """Reads datasets. Its methods raise InvalidDataset if a dataset cannot be read."""

    def __init__(self, uploads: Uploads, data_roots: Sequence[str]) -> None:
        self._uploads = uploads
        self._data_roots = data_roots
        #: the last pool; slices of one job often follow each other
        self._pool: tuple[DatasetRef, object, list[DatasetRow]] | None = None

    def rows(
        self, ref: DatasetRef, task: object, *, limit: int | None = None, offset: int = 0
    ) -> list[DatasetRow]:
        """Rows as read by `task` of the job's spec."""
        return self._read(ref, row_form(task), limit, offset)

    def texts(self, spec: CaptureJobSpec) -> list[DatasetRow]:
        """Prompts of a capture job."""
        assert spec.dataset is not None
        return self._read(spec.dataset, Texts(spec.text_field), spec.limit, spec.offset)

    def _read(self, ref: DatasetRef, form: RowForm, limit: int | None, offset: int) -> list[DatasetRow]:
        if isinstance(ref, HubDataset):
            return list(checked(from_row(hub_split(ref), offset), form, limit=limit, offset=offset))
        rows = dataset_sources.read(ref, self._uploads, self._data_roots, form, limit=limit, offset=offset)
        return list(rows)

    def fewshot_pool(self, spec: EvaluationSpec) -> list[DatasetRow]:
        """All rows that few-shot examples are drawn from; empty if the task has its own examples."""
        if spec.num_fewshot == 0 or spec.own_examples:
            return []
        ref = spec.fewshot_dataset or spec.dataset
        if self._pool is None or self._pool[:2] != (ref, spec.task):
            self._pool = (ref, spec.task, self.rows(ref, spec.task))
        return self._pool[2]


def hub_split(dataset: HubDataset) -> Any:
    """A split of a dataset on the Hub, or in the cache of an earlier download.

    Raises:
        InvalidDataset: the name is not a Hub id, the Hub cannot be reached, or it has no such dataset,
            config or split.
    """
    import datasets  # takes a second

    if Path(dataset.hub).exists():  # `load_dataset` would read it
        raise InvalidDataset(
            f"{dataset.hub!r} is also a folder in the worker's working directory; start the worker elsewhere",
            param="dataset",
        )
    name = f"{dataset.hub} (config {dataset.config or 'default'}, split {dataset.split})"
    try:
        rows = datasets.load_dataset(dataset.hub, dataset.config, split=dataset.split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        # ConnectionError, FileNotFoundError and the Hub's HTTP errors are OSErrors
        raise InvalidDataset(
            f"dataset {name} cannot be loaded: {error}; check name, config and split and that the worker "
            "reaches huggingface.co, or upload the rows through /v1/files and name them by file_id",
            param="dataset",
        ) from error
    if not isinstance(rows, datasets.Dataset):
        raise InvalidDataset(f"dataset {name} is not one split of rows", param="dataset")
    return rows
