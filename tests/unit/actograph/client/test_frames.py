"""Matrices in other libraries."""

import io
import json
from typing import Any

import numpy as np
import pytest
import torch

from actograph.client import UnexpectedAnswer
from actograph.client.matrix import Matrix


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
