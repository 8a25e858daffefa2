"""The datasets that a job names, wherever they lie."""

from collections.abc import Sequence

from actograph.contract.specs import DatasetRef, EvaluationSpec, ExtractSpec, HubDataset
from actograph.dataset_rows import DatasetRow, TextRow
from storage import dataset_sources
from storage.artifacts.store import ArtifactStore


class DatasetReader:
    def __init__(self, store: ArtifactStore, data_roots: Sequence[str]) -> None:
        self._store = store
        self._data_roots = data_roots
        #: the pool last used; slices of one job follow each other
        self._pool: tuple[DatasetRef, list[DatasetRow]] | None = None

    def rows(self, ref: DatasetRef, *, limit: int | None = None, offset: int = 0) -> list[DatasetRow]:
        """Raises InvalidDataset."""
        if isinstance(ref, HubDataset):
            # the library takes a second to import and is seldom needed
            from worker.evals.datasets import load_hub_rows

            return load_hub_rows(ref, limit=limit, offset=offset)
        return dataset_sources.read(ref, self._store, self._data_roots, limit=limit, offset=offset)

    def texts(self, spec: ExtractSpec) -> list[TextRow]:
        """Raises InvalidDataset."""
        ref = spec.dataset
        assert ref is not None
        if isinstance(ref, HubDataset):
            from worker.evals.datasets import load_hub_texts

            return load_hub_texts(ref, spec.text_field, limit=spec.limit, offset=spec.offset)
        return dataset_sources.read_text_rows(
            ref, spec.text_field, self._store, self._data_roots, limit=spec.limit, offset=spec.offset
        )

    def fewshot_pool(self, spec: EvaluationSpec) -> list[DatasetRow]:
        """Every row that few-shot examples may be drawn from; none without few-shot.

        Raises:
            InvalidDataset: the dataset cannot be read.
        """
        if spec.num_fewshot == 0:
            return []
        ref = spec.fewshot_dataset or spec.dataset
        if self._pool is None or self._pool[0] != ref:
            self._pool = (ref, self.rows(ref))
        return self._pool[1]
