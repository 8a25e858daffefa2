"""The `openai` package against a served application: files and models; and what `/v1/capabilities` says."""

from collections.abc import Iterator

import openai
import pytest
import sqlalchemy as sa

from actograph.contract.job_specs import JOB_KINDS, job_spec_adapter
from actograph.contract.tasks import SCORER_NAMES
from storage.files import files
from storage.tables.models import FileRow
from tests.integration.api.conftest import Service


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    """OpenAI's client of the running service, over a real connection."""
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as opened:
        yield opened


def test_a_file_expires_unless_something_reads_it(client: openai.OpenAI, service: Service) -> None:
    kept = client.files.create(file=("a.jsonl", b"{}"), purpose="batch")
    soon, read = (
        client.files.create(
            file=("b.jsonl", b'{"question": "1 + 1?", "answer": "#### 2"}'),
            purpose="batch",
            expires_after={"anchor": "created_at", "seconds": 3600},
        )
        for _ in range(2)
    )
    assert (kept.expires_at, soon.expires_at) == (None, soon.created_at + 3600)
    spec = {"kind": "evaluation", "model": "demo", "dataset": {"file_id": read.id}}
    assert service.client.post("/v1/jobs", json=spec).status_code == 202
    services = service.services
    assert files.expire(services.database) == 0
    with service.database.write() as session:
        session.execute(sa.update(FileRow).where(FileRow.expires_at.is_not(None)).values(expires_at=1.0))
    assert files.expire(services.database) == 1
    assert {file.id for file in client.files.list()} == {kept.id, read.id}
    service.drain()
    assert {found.prefix for found in services.store.list_prefixes("files")} == {
        f"files/{kept.id}", f"files/{read.id}",
    }  # fmt: skip
    with pytest.raises(openai.UnprocessableEntityError, match="expires_after"):
        client.files.create(
            file=("c.jsonl", b"{}"), purpose="batch", extra_body={"expires_after[anchor]": "created_at"}
        )


def test_capabilities_are_those_of_the_contract_and_the_settings(service: Service) -> None:
    found = service.client.get("/v1/capabilities").json()
    assert found["job_kinds"] == list(JOB_KINDS)
    assert {"/v1/models", "/v1/files"} <= set(found["openai_endpoints"])
    assert "POST /v1/jobs" in found["endpoints"]
    assert found["models"] == service.client.get("/v1/models").json()["data"]
    assert found["features"]["artifacts"] == "files"
    assert found["limits"]["max_upload_bytes"] == service.services.settings.max_upload_bytes
    # what it names, the service accepts
    capture = found["capture"]
    for field, values in {
        "positions": capture["positions"] + capture["segments"],
        "dtype": capture["dtypes"],
        "reduce": capture["reduce"],
    }.items():
        for value in values:
            service.submit(capture={"points": ["resid_post"], field: value})
    schema = job_spec_adapter.json_schema()["$defs"]
    assert capture["fields"] == list(schema["CaptureSpec"]["properties"])
    assert found["evaluation"]["scorers"] == list(SCORER_NAMES)
    evaluation = {"kind": "evaluation", "model": "demo", "dataset": {"file_id": "file_" + "0" * 32}}
    for task in found["evaluation"]["tasks"]:
        job_spec_adapter.validate_python(evaluation | {"task": task})
