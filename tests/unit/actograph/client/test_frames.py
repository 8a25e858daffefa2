"""Matrices and samples in other libraries."""

import io
import json
from typing import Any

import numpy as np
import pytest
import torch

from actograph.client import Client, UnexpectedAnswer
from actograph.client.matrix import Matrix
from actograph.contract import base, resources


def matrix(**changes: Any) -> Matrix:
    arrays = {
        "hook": "resid_post.1", "features": np.ones((2, 4), np.float32), "labels": np.array([1.0, 0.0]),
        "tokens": np.arange(2), "sample_index": np.arange(2), "groups": np.arange(2),
        "epoch": np.zeros(2, int),
        "condition": np.array(["a", "b"]), "session_id": np.array(["ses_1", "ses_2"]),
        "skipped": json.dumps([{"session_id": "ses_3", "reason": "no rows"}]),
    }  # fmt: skip
    file = io.BytesIO()
    np.savez(file, **arrays | changes)
    file.seek(0)
    return Matrix.load(file)


def test_torch_and_pandas_on_request() -> None:
    found = matrix()
    features, labels = found.torch()
    assert features.shape == (2, 4)
    assert labels.dtype == torch.float32
    frame = found.frame()
    about = ["session_id", "sample_index", "condition", "epoch", "group", "token", "label"]
    assert list(frame.columns) == about
    assert frame.label.sum() == 1
    dataset = found.to_dataset().with_format("numpy")
    assert set(dataset.column_names) == {*frame.columns, "features"}
    assert np.array_equal(dataset["features"][:], found.features)
    assert found.groups.tolist() == [0, 1]
    assert repr(found) == "Matrix(resid_post.1, features [2, 4] float32, 1 sessions skipped)"


def test_an_answer_that_is_no_matrix_is_refused() -> None:
    with pytest.raises(UnexpectedAnswer):
        matrix(labels=np.array([{}]))  # pickled
    with pytest.raises(UnexpectedAnswer):
        matrix(more=np.zeros(1))
    with pytest.raises(UnexpectedAnswer):
        Matrix.load(io.BytesIO(b"<html>"))


def test_samples_as_a_frame(service: Any, client: Client) -> None:
    job = service.add_job(1)
    service.samples[job.id] = [
        resources.Sample(
            id=f"smp_{n:032x}", job_id=job.id, sample_index=n, condition="ab"[n % 2],
            status=resources.SampleStatus.COMPLETED if n else resources.SampleStatus.FAILED, input={},
            scores={"exact_match,strict-match": resources.Score(value=1.0)} if n else {},
            error=None if n else base.ErrorRecord(type="x", message="it broke"),
        )
        for n in range(3)
    ]  # fmt: skip
    frame = client.jobs.get(job.id).frame()
    assert frame["sample_index"].tolist() == [0, 1, 2]
    assert frame["status"].tolist() == ["failed", "completed", "completed"]
    assert frame["error"].tolist()[0] == "it broke"
    assert frame["exact_match,strict-match"].isna().tolist() == [True, False, False]
