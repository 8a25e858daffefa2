"""The page of a session, and the numbers that its viewer reads."""

from typing import Any

import numpy as np
import pytest

from tests.integration.api.conftest import EMBED, Keyed, Service
from tests.support.viewed import store_analysis, store_session

pytestmark = pytest.mark.integration

TEXTS = ["<b>", "a", " thought", "\u202eright", " \U0001f600", "end"]
FULL = np.random.default_rng(0).normal(size=(5, 8)).astype("<f4")
LAST = np.random.default_rng(1).normal(size=(2, 4)).astype("<f4")
ROWS = {"resid_post.0": FULL, "resid_post.1": FULL * 2, "mlp_in.0": LAST}
NAN = float("nan")
HTML = {"Accept": "text/html"}
#: of a form of this page
FORM = {"Accept": "text/html", "Origin": "http://127.0.0.1:8420"}


def made(service: Service, **options: Any) -> str:
    (lease,) = service.claim(service.submit())
    return store_session(service.database, service.services.store, lease, TEXTS, ROWS, **options)


def values(service: Service, session_id: str, **query: Any) -> Any:
    answer = service.client.get(f"/sessions/{session_id}/values", params={"start": 0, "stop": 99} | query)
    assert answer.status_code == 200, answer.text
    return np.frombuffer(answer.content, "<f4").reshape(len(query["hook"]), -1)


def test_numbers_are_those_of_numpy(service: Service) -> None:
    session_id = made(service, logprobs=[{"token": "x", "logprob": -place} for place in range(1, 4)])
    hooks = ["resid_post.0", "mlp_in.0"]
    norms = np.full((2, 6), NAN)
    norms[0, :5], norms[1, 3:5] = np.linalg.norm(FULL, axis=1), np.linalg.norm(LAST, axis=1)
    np.testing.assert_allclose(values(service, session_id, of="norm", hook=hooks), norms, rtol=1e-6)
    part = values(service, session_id, of="norm", hook=hooks, start=2, stop=4)
    np.testing.assert_allclose(part, norms[:, 2:4], rtol=1e-6)
    found = values(service, session_id, of="channel", channel=5, hook=hooks)
    assert np.array_equal(found[0, :5], FULL[:, 5])
    assert np.isnan(found[1]).all(), "the second hook has no such channel"
    body = {"name": "v", "hook": "resid_post.0", "vector": [2.0] + [0.0] * 7}
    vector = service.client.post("/v1/vectors", json=body).json()["id"]
    found = values(service, session_id, of="projection", vector=vector, hook=hooks)
    np.testing.assert_allclose(found[0, :5], FULL[:, 0], rtol=1e-6)
    assert np.isnan(found[1]).all(), "the vector has another width"
    found = values(service, session_id, of="logprob", hook=[""])
    np.testing.assert_array_equal(found, [[NAN, NAN, -1, -2, -3, NAN]])
    unknown = {"of": "norm", "hook": "embed", "start": 0, "stop": 1}
    assert service.client.get(f"/sessions/{session_id}/values", params=unknown).status_code == 404
    answer = service.client.get(f"/sessions/{session_id}/tokens", params={"start": 3, "stop": 5})
    assert (answer.json()["ids"], answer.json()["texts"]) == ([103, 104], TEXTS[3:5])
    assert answer.json()["turns"] == [0, 2]


def test_probes_and_lenses_of_the_job_are_read(service: Service) -> None:
    session_id = made(service)
    store, job_id = service.services.store, service.client.get("/v1/jobs").json()["data"][0]["id"]
    origin = {"session_id": session_id, "position": 3, "hook": "resid_post.0"}
    lines = [origin | {"text": "\n,", "log_probability": -0.5}, origin | {"position": 4, "text": "no"}]
    store_analysis(service.database, store, "lens", job_id, tables={"lens": lines})
    probe = store_analysis(service.database, store, "probe", job_id, arrays={"resid_post.1": FULL[0]})
    found = values(service, session_id, of="projection", vector=probe, hook=["resid_post.0", "resid_post.1"])
    assert np.isnan(found[0]).all(), "the probe has no direction of this hook"
    np.testing.assert_allclose(found[1, 0], 2 * np.linalg.norm(FULL[0]), rtol=1e-6)
    page = service.client.get(f"/sessions/{session_id}", headers=HTML).text
    assert f'<option value="{probe}">' in page
    query: dict[str, Any] = {"hook": "resid_post.0", "token": 3}
    row = service.client.get(f"/sessions/{session_id}/row", params=query).json()
    assert row["lens"] == [["\n,", -0.5]]
    np.testing.assert_allclose(row["norm"], np.linalg.norm(FULL[3]), rtol=1e-6)
    top = int(np.abs(FULL[3]).argmax())
    assert row["channels"][0] == [top, FULL[3, top]]
    cosines = (FULL @ FULL[3]) / np.linalg.norm(FULL, axis=1) / np.linalg.norm(FULL[3])
    order = [place for place in np.argsort(-cosines) if place != 3]
    assert [place for place, _, _ in row["nearest"]] == order
    np.testing.assert_allclose([one for _, _, one in row["nearest"]], cosines[order], rtol=1e-5)
    assert service.client.get(f"/sessions/{session_id}/row", params=query | {"token": 5}).json() is None


def test_a_session_is_tagged_pinned_and_deleted_by_forms(service: Service) -> None:
    session_id = made(service, correct=True)
    path = f"/sessions/{session_id}"

    def change(**form: str) -> Any:
        return service.client.post(path, data=form, headers=FORM)

    assert change(action="tag", tags=" <i>, night,").headers["location"] == path
    page = service.client.get(path, headers=HTML)
    assert 'value="&lt;i&gt;, night"' in page.text
    assert "&lt;b&gt;a</pre>" in page.text
    assert "<b>" not in page.text
    assert change(action="tag", tags="x" * 65).status_code == 422
    assert change(action="pin").status_code == 303
    assert change(action="delete").status_code == 409, "it is pinned"
    change(action="unpin")
    assert change(action="tag").status_code == 303
    assert service.client.get(f"/v1/activations{path}").json()["tags"] == []
    assert change(action="delete").headers["location"].startswith("/jobs/job_")
    assert service.client.get(path, headers=HTML).status_code == 404


def test_another_owners_session_is_not_there(keyed: Keyed) -> None:
    mine, theirs = (keyed.headers(keyed.make_key("submit", owner=name)) for name in ("me", "they"))
    spec = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "a"}]}
    job_id = keyed.client.post("/v1/jobs", json=spec, headers=mine).json()["id"]
    session_id = keyed.finish(*keyed.claim(job_id), tensors=EMBED)
    for path in (
        "",
        "/tokens?start=0&stop=1",
        "/values?of=norm&hook=embed&start=0&stop=1",
        "/row?hook=embed&token=0",
    ):
        for headers, status in ((mine, 200), (theirs, 404)):
            answer = keyed.client.get(f"/sessions/{session_id}{path}", headers=headers | {"Accept": "*/*"})
            assert answer.status_code == status, path
