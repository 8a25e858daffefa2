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
    stored = (
        ((index, _stored(given)) for index, given in enumerate(spec.inputs))
        if spec.inputs
        else ((row.index, {"prompt": row.question} | _columns(row)) for row in rows)
    )
    return _samples(stored, spec, spec.epochs, spec.sampling.seed)


def _stored(given: CaptureInput) -> dict[str, Any]:
    fields = given.model_dump(exclude_none=True)
    return {name: value for name, value in fields.items() if name != "tags" or value}


def _columns(row: DatasetRow) -> dict[str, Any]:
    return {"columns": dict(row.columns)} if row.columns else {}


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
