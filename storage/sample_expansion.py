"""From a job spec to its samples: one for every input, condition and epoch.

The conditions and epochs of one problem stand together, so that a job that is read while it
runs can be compared pair by pair.
"""

from collections.abc import Iterator, Sequence

from actograph.contract.specs import CaptureJobSpec, EvaluationSpec, sample_seed
from actograph.dataset_rows import DatasetRow
from storage.samples import NewSample


def evaluation_samples(spec: EvaluationSpec, rows: Sequence[DatasetRow]) -> Iterator[NewSample]:
    """`index` is the row's place in the dataset, whatever `offset` and `limit` are."""
    for row in rows:
        for condition in spec.conditions:
            for epoch in range(spec.epochs):
                yield NewSample(
                    sample_index=row.index,
                    condition=condition.name,
                    epoch=epoch,
                    input={"question": row.question, "answer": row.answer},
                    seed=sample_seed(spec.sampling.seed, row.index, epoch),
                )


def capture_samples(spec: CaptureJobSpec) -> Iterator[NewSample]:
    """One sample for each of `inputs` under each condition in each epoch."""
    names = [condition.name for condition in spec.conditions] or [""]
    for index, given in enumerate(spec.inputs):
        for name in names:
            for epoch in range(spec.epochs):
                yield NewSample(
                    sample_index=index,
                    condition=name,
                    epoch=epoch,
                    input=given.model_dump(exclude_none=True),
                    seed=sample_seed(spec.sampling.seed, index, epoch),
                )
