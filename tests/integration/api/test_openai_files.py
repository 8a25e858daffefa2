"""The `openai` package against a served application: files and models; and what `/v1/capabilities` says."""

import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import openai
import pytest
import sqlalchemy as sa
import uvicorn

from actograph.contract.job_specs import JOB_KINDS, job_spec_adapter
from actograph.contract.tasks import SCORER_NAMES
from storage.files import files
from storage.tables.models import FileRow

if TYPE_CHECKING:
    from tests.integration.api.conftest import Service

pytestmark = pytest.mark.integration


@pytest.fixture
def client(service: "Service") -> Iterator[openai.OpenAI]:
    """OpenAI's client of the running service, over a real connection."""
    # the application runs already: its start and end are the fixture's
    server = uvicorn.Server(uvicorn.Config(service.app, port=0, lifespan="off", log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as opened:
        yield opened
    server.should_exit = True
    thread.join()


def test_a_file_expires_unless_something_reads_it(client: openai.OpenAI, service: "Service") -> None:
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


def test_capabilities_are_those_of_the_contract_and_the_settings(service: "Service") -> None:
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
