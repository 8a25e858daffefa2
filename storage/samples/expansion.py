"""Expand a job spec into samples: one for every input, condition and epoch.

Conditions and epochs of one problem are consecutive, so partial results can be compared pair by pair.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from actograph.contract.job_specs import CaptureInput, CaptureJobSpec, EvaluationSpec
from actograph.contract.specs import sample_seed
from evals.dataset_rows import DatasetRow
from storage.samples import NewSample


def evaluation_samples(spec: EvaluationSpec, rows: Iterable[DatasetRow]) -> Iterator[NewSample]:
    """One sample for each row, condition and epoch. `index` is the row's place in the whole dataset."""
    return _samples(((row.index, row.input) for row in rows), spec, spec.epochs, spec.sampling.seed)


def capture_samples(spec: CaptureJobSpec, rows: Iterable[DatasetRow] = ()) -> Iterator[NewSample]:
    """One sample for each input, or each row if the spec has no inputs, condition and epoch.

    `index` is a row's place in the whole dataset.
    """
    inputs = (
        enumerate(spec.inputs) if spec.inputs else ((r.index, CaptureInput(prompt=r.question)) for r in rows)
    )
    stored = ((index, given.model_dump(exclude_none=True)) for index, given in inputs)
    return _samples(stored, spec, spec.epochs, spec.sampling.seed)


def _samples(
    inputs: Iterable[tuple[int, dict[str, Any]]],
    spec: EvaluationSpec | CaptureJobSpec,
    epochs: int,
    seed: int,
) -> Iterator[NewSample]:
    names = [condition.name for condition in spec.conditions] or [""]
    for index, given in inputs:
        for name in names:
            for epoch in range(epochs):
                yield NewSample(
                    sample_index=index,
                    condition=name,
                    epoch=epoch,
                    input=given,
                    seed=sample_seed(seed, index, epoch),
                )
