"""Datasets in every format, and tasks of a client's own, submitted over HTTP."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from actograph.settings import Settings
from tests.integration.api.conftest import Service

ROWS = [{"question": f"What is {i}?", "answer": f"It is {i}. #### {i}"} for i in range(5)]
TASK = {
    "name": "sums",
    "prompt": "{{story}}",
    "target": "{{(a | int) + (b | int)}}",
    "question": "story",
    "fewshot": {"samples": [{"story": "1+2?", "a": 1, "b": 2}, {"story": "3+4?", "a": 3, "b": 4}]},
}
SUMS = [{"story": f"{i}+{i}?", "a": i, "b": i} for i in range(4)]


def written(rows: list[dict[str, Any]], name: str) -> bytes:
    """The rows as the end of `name` says."""
    if name.endswith(".parquet"):
        file = io.BytesIO()
        parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        return file.getvalue()
    if name.endswith(".csv"):
        lines = [list(rows[0]), *(list(row.values()) for row in rows)]
        return "".join(",".join(f'"{value}"' for value in line) + "\n" for line in lines).encode()
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def evaluation(dataset: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"kind": "evaluation", "model": "demo", "dataset": dataset} | changes


def submit(service: Service, spec: dict[str, Any]) -> dict[str, Any]:
    answer = service.client.post("/v1/jobs", json=spec)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    return job


def inputs(service: Service, job: dict[str, Any]) -> list[dict[str, Any]]:
    data = service.client.get(f"/v1/jobs/{job['id']}/samples", params={"limit": 100}).json()["data"]
    return [sample["input"] for sample in data]


def test_uploads_and_paths_in_every_format(
    service: Service, settings: Settings, subtests: pytest.Subtests
) -> None:
    task = {"file_id": service.upload_bytes("sums.yaml", json.dumps(TASK).encode())}
    for written_as in ("jsonl", "csv", "parquet"):
        with subtests.test(written_as):
            name = f"rows.{written_as}"
            content = written(ROWS, name)
            (Path(settings.data_roots[0]) / name).write_bytes(content)
            for dataset in ({"file_id": service.upload_bytes(name, content)}, {"path": name}):
                job = submit(service, evaluation(dataset, offset=1, limit=3))
                assert inputs(service, job) == ROWS[1:4]
                # the worker reads few-shot examples from the same file without its name
                assert job["spec"]["dataset"]["format"] == written_as
            texts = {"kind": "capture", "model": "demo", "dataset": {"path": name}, "limit": 2}
            job = submit(service, texts | {"text_field": "question"})
            assert inputs(service, job) == [
                {"prompt": row["question"], "columns": {"answer": row["answer"]}} for row in ROWS[:2]
            ]

            file_id = service.upload_bytes(f"sums.{written_as}", written(SUMS, name))
            job = submit(service, evaluation({"file_id": file_id}, task=task))
            assert (job["spec"]["task"]["name"], job["spec"]["num_fewshot"]) == ("sums", 2)
            assert [(given["question"], given["answer"]) for given in inputs(service, job)] == [
                (f"{i}+{i}?", str(2 * i)) for i in range(4)
            ]
