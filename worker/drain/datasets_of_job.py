"""Datasets of a job: uploads, files of the data folders, the Hub."""

from collections.abc import Sequence

from actograph.contract.specs import DatasetRef, EvaluationSpec, ExtractSpec, HubDataset
from actograph.datasets.dataset_rows import DatasetRow, TextRow
from actograph.tasks.rows import row_form
from storage.files import dataset_sources
from storage.files.dataset_sources import Uploads


class DatasetReader:
    def __init__(self, uploads: Uploads, data_roots: Sequence[str]) -> None:
        self._uploads = uploads
        self._data_roots = data_roots
        #: the last pool; slices of one job often follow each other
        self._pool: tuple[DatasetRef, object, list[DatasetRow]] | None = None

    def rows(
        self, ref: DatasetRef, task: object, *, limit: int | None = None, offset: int = 0
    ) -> list[DatasetRow]:
        """Rows as read by `task` of the job's spec. Raises InvalidDataset."""
        reader = row_form(task)
        if isinstance(ref, HubDataset):
            # its import takes a second
            from worker.evals.datasets import load_hub_rows

            return load_hub_rows(ref, limit=limit, offset=offset, reader=reader)
        return list(
            dataset_sources.read(
                ref, self._uploads, self._data_roots, limit=limit, offset=offset, reader=reader
            )
        )

    def texts(self, spec: ExtractSpec) -> list[TextRow]:
        """Raises InvalidDataset."""
        ref = spec.dataset
        assert ref is not None
        if isinstance(ref, HubDataset):
            from worker.evals.datasets import load_hub_texts

            return load_hub_texts(ref, spec.text_field, limit=spec.limit, offset=spec.offset)
        return list(
            dataset_sources.read_text_rows(
                ref, spec.text_field, self._uploads, self._data_roots, limit=spec.limit, offset=spec.offset
            )
        )

    def fewshot_pool(self, spec: EvaluationSpec) -> list[DatasetRow]:
        """All rows that few-shot examples are drawn from; empty if the task has its own examples.

        Raises:
            InvalidDataset: the dataset cannot be read.
        """
        if spec.num_fewshot == 0 or spec.own_examples:
            return []
        ref = spec.fewshot_dataset or spec.dataset
        if self._pool is None or self._pool[:2] != (ref, spec.task):
            self._pool = (ref, spec.task, self.rows(ref, spec.task))
        return self._pool[2]
