"""The page of the session viewer, as HTML."""

from typing import TYPE_CHECKING

import numpy as np
import pytest

from storage.sessions.writer import TensorRows

if TYPE_CHECKING:
    from tests.integration.api.conftest import Keyed, Service

pytestmark = pytest.mark.integration

HTML = {"Accept": "text/html"}
HOSTILE = "<script>alert(1)</script>"


def made(service: "Service", count: int = 1) -> list[str]:
    inputs = [{"prompt": "Hello"}] * count
    job_id = service.submit(inputs=inputs)
    rows = {"embed": TensorRows("embed", "F32", (6, 8), 0, np.ones((6, 8), "<f4"))}
    found = [service.finish(lease, tensors=rows) for lease in service.claim(job_id, count)]
    return [str(one) for one in found]


def test_the_page_offers_vectors_of_the_width(service: "Service") -> None:
    (session_id,) = made(service)
    for name, width in (("fits", 8), ("narrow", 2)):
        body = {"name": name, "hook": "resid_post.1", "vector": [1.0] * width}
        assert service.client.post("/v1/interventions", json=body).status_code == 201
    answer = service.client.get(f"/sessions/{session_id}/view", headers=HTML)
    assert answer.status_code == 200
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert "fits (resid_post.1)" in answer.text
    assert "narrow (" not in answer.text
    assert "style=" not in answer.text
    assert answer.text.count('class="card pane"') == 1
    for name in ("viewer.js", "viewer-data.js", "viewer.css"):
        assert service.client.get(f"/static/{name}").status_code == 200


def test_two_sessions_stand_side_by_side(service: "Service") -> None:
    first, second = made(service, 2)
    page = service.client.get(f"/sessions/{first}/view", params={"with": second}, headers=HTML).text
    assert page.count('class="card pane"') == 2
    assert f"/sessions/{second}/view?with={first}" in page
    for other in ("ses_" + "0" * 32, HOSTILE):
        page = service.client.get(f"/sessions/{first}/view", params={"with": other}, headers=HTML).text
        assert page.count('class="card pane"') == 1
        assert 'role="alert"' in page
        assert HOSTILE not in page


def test_a_missing_session_is_a_page_of_its_own(service: "Service") -> None:
    answer = service.client.get(f"/sessions/ses_{'0' * 32}/view", headers=HTML)
    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")


def test_a_foreign_session_cannot_be_compared_with(keyed: "Keyed") -> None:
    alice = keyed.headers(keyed.make_key("submit", owner="alice"))
    bob = keyed.headers(keyed.make_key("submit", owner="bob"))
    found = []
    for headers in (alice, bob):
        spec = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "Hello"}]}
        job_id = keyed.client.post("/v1/jobs", json=spec, headers=headers).json()["id"]
        rows = {"embed": TensorRows("embed", "F32", (6, 8), 0, np.ones((6, 8), "<f4"))}
        found.append(str(keyed.finish(*keyed.claim(job_id), tensors=rows)))
    own, foreign = f"/sessions/{found[1]}/view", found[0]
    unknown = "ses_" + "0" * 32
    pages = [
        keyed.client.get(own, params={"with": other}, headers=bob | HTML).text.replace(other, "ID")
        for other in (foreign, unknown)
    ]
    assert pages[0] == pages[1]
