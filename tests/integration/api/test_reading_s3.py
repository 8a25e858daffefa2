"""Rows of a tensor that lies on S3: how many requests they cost, and how many bytes."""

import os
import urllib.request
from typing import Any

import numpy as np
import pytest

from actograph import tensor_files
from actograph.settings import Settings
from storage.artifacts.s3 import S3Store
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import Service, Start

ROWS = np.arange(6 * 512, dtype="<f4").reshape(6, 512)


@pytest.fixture
def service(start: Start, settings: Settings, s3_bucket: str) -> Service:
    return start(settings.model_copy(update={"artifact_url": f"s3://{s3_bucket}/lab"}))


@pytest.fixture
def session_id(service: Service) -> str:
    hooks = {f"resid_post.{i}": TensorRows(f"resid_post.{i}", "F32", (6, 512), 0, ROWS + i) for i in range(4)}
    made = service.finish(*service.claim(service.submit()), tensors=hooks)
    assert made is not None
    return made


@pytest.fixture
def requests(service: Service) -> list[tuple[str, str, str]]:
    """Every request to the store from now on: method, last part of the key, range."""
    seen: list[tuple[str, str, str]] = []
    store = service.services.store
    assert isinstance(store, S3Store)

    def note(request: Any, **_: Any) -> None:
        asked = request.headers.get("Range") or ""
        asked = asked.decode() if isinstance(asked, bytes) else str(asked)
        name = request.url.partition("?")[0].rpartition("/")[2]
        seen.append((request.method, name, asked.removeprefix("bytes=")))

    store._client.meta.events.register("before-send.s3", note)
    return seen


def read(service: Service, session_id: str, hook: str, rows: str) -> np.ndarray[Any, Any]:
    answer = service.client.get(
        f"/v1/activations/sessions/{session_id}/tensors/{hook}", params={"rows": rows}
    )
    assert answer.status_code == 200, answer.text
    data = answer.content
    header = tensor_files.read_header(lambda at, n: data[at : at + n], len(data))
    (entry,) = header.tensors.values()
    return tensor_files.value_array(entry.dtype, entry.shape, data[entry.start : entry.stop])


def test_rows_cost_one_range_request_once_manifest_and_header_are_known(
    service: Service, session_id: str, requests: list[tuple[str, str, str]]
) -> None:
    assert (read(service, session_id, "resid_post.1", "2:4") == ROWS[2:4] + 1).all()
    assert [method for method, _, _ in requests] == ["GET"] * 3, "manifest, header, rows"
    assert requests[0][:2] == ("GET", "manifest.json")
    for hook, rows, (start, stop) in (
        ("resid_post.1", "2:4", (2, 4)),
        ("resid_post.3", "0:1", (0, 1)),
        ("layers_output[2]", ":", (0, 6)),
    ):
        requests.clear()
        shift = int(hook.rstrip("]")[-1])
        assert (read(service, session_id, hook, rows) == ROWS[start:stop] + shift).all()
        ((method, name, asked),) = requests
        first, _, last = asked.partition("-")
        assert (method, name) == ("GET", "activations.safetensors")
        assert (stop - start) * 512 * 4 == int(last) - int(first) + 1


def file_of(service: Service, session_id: str, **options: Any) -> Any:
    url = f"/v1/activations/sessions/{session_id}/files/activations.safetensors"
    return service.client.get(url, follow_redirects=False, **options)


def stored_session(service: Service) -> str:
    rows = {"resid_post.0": TensorRows("resid_post.0", "F32", (6, 512), 0, ROWS)}
    made = service.finish(*service.claim(service.submit()), tensors=rows)
    assert made is not None
    return made


def test_a_download_is_signed_for_the_address_that_clients_reach(
    start: Start, settings: Settings, s3_bucket: str
) -> None:
    """The host is part of the signature, so the address cannot be put in afterwards."""
    inside = os.environ["AWS_ENDPOINT_URL_S3"]
    outside = inside.replace("127.0.0.1", "localhost")
    assert outside != inside
    own = {"artifact_url": f"s3://{s3_bucket}/lab", "s3_public_endpoint": outside}
    service = start(settings.model_copy(update=own))
    answer = file_of(service, stored_session(service))
    assert answer.status_code == 307
    assert answer.headers["location"].startswith(f"{outside}/{s3_bucket}/lab/sessions/")
    with urllib.request.urlopen(answer.headers["location"]) as reply:
        data = reply.read()
    header = tensor_files.read_header(lambda at, n: data[at : at + n], len(data))
    assert "resid_post.0" in header.tensors


def test_proxied_downloads_come_from_the_service_itself(
    start: Start, settings: Settings, s3_bucket: str
) -> None:
    own = {"artifact_url": f"s3://{s3_bucket}/lab", "downloads": "proxy"}
    service = start(settings.model_copy(update=own))
    session_id = stored_session(service)
    whole = file_of(service, session_id)
    assert whole.status_code == 200
    assert int(whole.headers["content-length"]) == len(whole.content)
    upload = service.upload({"question": "q", "answer": "#### 1"})
    content = service.client.get(f"/v1/files/{upload}/content", follow_redirects=False)
    assert (content.status_code, content.json()["question"]) == (200, "q")
