"""A flipped byte in the store is never served: not in a file, a range, a slice or a manifest."""

import io
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from tests.integration.api.conftest import Problem, Service
from tests.support.stored_files import stored_path

ROWS, WIDTH = 6, 200_000


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(("name", "copies"), [("rows.csv", 1), ("rows.parquet", 40_000)])
def test_a_job_on_a_tampered_upload_is_refused(
    service: Service, problem: Problem, name: str, copies: int
) -> None:
    """The byte that changes lies in the first row: 2 + 2 becomes 3 + 2 and the file is still readable."""
    row = {"question": "What is 2 + 2?", "answer": "It is 4. #### 4"}
    content = b"question,answer\n" + b"What is 2 + 2?,It is 4. #### 4\n" * copies
    if name.endswith("parquet"):
        file = io.BytesIO()
        parquet.write_table(pyarrow.Table.from_pylist([row] * copies), file, compression="none")
        content = file.getvalue()
    file_id = service.upload_bytes(name, content)
    spec = {"kind": "evaluation", "model": "demo", "dataset": {"file_id": file_id}, "limit": 1}
    assert service.client.post("/v1/estimate", json=spec).status_code == 200
    flip(stored_path(service.services.store, f"files/{file_id}"), content.index(b"2 + 2"))
    for route in ("/v1/jobs", "/v1/estimate"):
        problem(service.client.post(route, json=spec), 500, "store_damaged", says=file_id)
    assert service.queue_state() == (0, 0, [])
    assert "actograph_damaged_reads_total 2.0" in service.client.get("/metrics").text
