"""Extract jobs: resolve, check and expand."""

from collections.abc import Iterator

from actograph.contract.specs import ExtractSpec, FileDataset, HubDataset, PathDataset
from actograph.datasets.dataset_rows import TextRow
from api.dependencies import Services
from api.submission import datasets, steps
from api.submission.steps import Checked, Resolved, Submission
from storage.files import dataset_sources
from storage.files.dataset_sources import Uploads
from storage.samples.expansion import extract_samples
from storage.submission import row_spool


def resolve(services: Services, spec: ExtractSpec, owner: str | None) -> Resolved[ExtractSpec]:
    """Locate the dataset and set the defaults."""
    if spec.dataset is not None:
        spec = spec.model_copy(update={"dataset": datasets.locate(services, spec.dataset, "dataset")})
    return steps.resolve(services, spec, owner, datasets.uploads(dataset=spec.dataset))


check = steps.check


def expand(checked: Checked[ExtractSpec]) -> Submission:
    """One sample for each input or row, and condition."""
    spec = checked.spec
    per_row = max(1, len(spec.conditions))
    if spec.dataset is None:
        return checked.submission(lambda: extract_samples(spec, ()), len(spec.inputs or ()) * per_row)
    if isinstance(spec.dataset, HubDataset):
        return checked.submission(lambda: extract_samples(spec, ()), None)
    rows = row_spool.texts(_rows(checked, spec.dataset, datasets.most_rows(spec.limit, per_row)))
    return checked.submission(lambda: extract_samples(spec, rows), len(rows) * per_row)


def _rows(checked: Checked[ExtractSpec], dataset: FileDataset | PathDataset, limit: int) -> Iterator[TextRow]:
    services = checked.resolved.services
    with datasets.named("dataset"):
        yield from dataset_sources.read_text_rows(
            dataset,
            checked.spec.text_field,
            Uploads(services.database, services.store),
            services.settings.data_roots,
            limit=limit,
            offset=min(checked.spec.offset, datasets.FARTHEST_ROW),
        )
