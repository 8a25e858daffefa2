"""A sample, sessions, the submit form, models, workers, storage and keys, as HTML."""

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
import sqlalchemy as sa

from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import Score
from api.pages.samples import difference, split_reasoning
from api.pages.submission import SpecForm, spec_of
from storage.sessions.writer import TensorRows
from storage.tables.models import SampleRow

if TYPE_CHECKING:
    from tests.integration.api.conftest import Keyed, Service

pytestmark = pytest.mark.integration

HTML = {"Accept": "text/html", "Origin": "http://127.0.0.1:8420"}
HOSTILE = "<script>alert(1)</script>\"'>\u202e\u05d0\U0001f600"


def rows() -> dict[str, TensorRows]:
    """Rows of one hook."""
    return {"resid_post.1": TensorRows("resid_post.1", "F32", (6, 8), 0, np.ones((6, 8), "<f4"))}


def test_reasoning_is_split_from_the_answer() -> None:
    assert split_reasoning("<think>a</think>\n\nb") == ("a", "b")
    assert split_reasoning("a</think>b") == ("a", "b")
    assert split_reasoning("<think>a") == ("a", "")
    assert split_reasoning("b") == ("", "b")


def test_a_difference_is_of_words_and_holds_both_texts() -> None:
    pieces = difference("one two three", "one four three")
    assert [(piece.kind, piece.text) for piece in pieces] == [
        ("same", "one "), ("only_here", "two "), ("only_there", "four "), ("same", "three"),
    ]  # fmt: skip
    assert difference("", "") == []


def test_a_sample_shows_its_text_verdicts_and_session(service: "Service") -> None:
    job_id = service.submit(inputs=[{"prompt": HOSTILE}])
    lease = service.claim(job_id)[0]
    session_id = service.finish(
        lease, tensors=rows(), scores={"exact_match,none": Score(value=0.0, answer=HOSTILE)}
    )
    with service.database.write() as session:
        long = "<think>\u05d0" + HOSTILE + "</think>" + "<b>" * 1_700_000
        session.execute(sa.update(SampleRow).where(SampleRow.id == lease.id).values(completion=long))
    answer = service.client.get(f"/jobs/{job_id}/samples/{lease.id}", headers=HTML)
    page = answer.text
    assert answer.status_code == 200
    assert "Reasoning" in page
    assert f"/sessions/{session_id}" in page
    assert "<script>alert" not in page
    assert "<b>" not in page
    assert len(page) < 1_000_000
    assert "all as JSON" in page
    answer = service.client.get(f"/jobs/{job_id}/samples/{lease.id}?against=other", headers=HTML)
    assert answer.status_code == 404


def test_sessions_are_searched_pinned_tagged_and_deleted(service: "Service") -> None:
    assert "No session matches." in service.client.get("/sessions", headers=HTML).text
    session_id = service.finish(
        service.claim(service.submit(tags=["night"]))[0], tensors=rows(), correct=True
    )
    for query in ("", "?tag=night", "?correct=yes", "?pinned=no", "?model=demo"):
        assert f"/sessions/{session_id}" in service.client.get(f"/sessions{query}", headers=HTML).text
    for query in ("?tag=day", "?correct=no", "?pinned=yes", "?condition=a"):
        assert f"/sessions/{session_id}" not in service.client.get(f"/sessions{query}", headers=HTML).text
    page = f"/sessions/{session_id}"
    for action, data in (("pin", {"pinned": "true"}), ("tags", {"tags": "a, <b>,a"})):
        assert service.client.post(f"{page}/{action}", data=data, headers=HTML).headers["location"] == page
    found = service.client.get(f"/v1/activations{page}").json()
    assert (found["pinned"], sorted(found["tags"])) == (True, ["<b>", "a"])
    assert "<b>" not in service.client.get(page, headers=HTML).text
    assert service.client.post(f"{page}/delete", headers=HTML).status_code == 409
    service.client.post(f"{page}/pin", data={"pinned": "false"}, headers=HTML)
    assert service.client.post(f"{page}/delete", headers=HTML).status_code == 303
    assert service.client.get(page, headers=HTML).status_code == 404


def test_the_form_makes_a_spec_and_submits_it(service: "Service") -> None:
    service.load_model()
    data = {
        "model": "demo",
        "prompts": "one\n\ntwo\n",
        "max_tokens": "8",
        "points": ["mlp_in"],
        "layers": "0,1",
    }
    assert "demo" in service.client.get("/submit", headers=HTML).text
    part = service.client.post("/submit/estimate", data=data, headers=HTML).text
    assert "2 samples" in part
    assert "mlp_in" in part
    answer = service.client.post("/submit", data=data, headers=HTML)
    assert answer.status_code == 303
    made = service.client.get(f"/v1{answer.headers['location']}/samples").json()["data"]
    assert [one["input"]["prompt"] for one in made] == ["one", "two"]
    before = service.queue_state()
    for fault in ({"prompts": ""}, {"max_tokens": "x"}, {"layers": "99"}, {"spec": "{"}, {"spec": "[]"}):
        assert (
            'role="status"' in service.client.post("/submit/estimate", data=data | fault, headers=HTML).text
        )
        assert service.client.post("/submit", data=data | fault, headers=HTML).status_code == 422
    assert service.queue_state() == before


def test_a_spec_in_json_replaces_the_fields() -> None:
    assert spec_of(SpecForm(spec='{"kind": "x"}', prompts="p")) == {"kind": "x"}
    with pytest.raises(InvalidRequest, match="not JSON"):
        spec_of(SpecForm(spec="nonsense"))


def test_models_workers_and_storage(service: "Service") -> None:
    assert "no worker has loaded" in service.client.get("/models", headers=HTML).text
    assert "No worker has started" in service.client.get("/workers", headers=HTML).text
    worker_id = service.load_model()
    models = service.client.get("/models?model=demo", headers=HTML).text
    assert "model.layers.0.attn_in.output" in models
    assert "the model has no experts" in models
    assert worker_id in service.client.get("/workers", headers=HTML).text
    assert service.client.post("/models", data={"model": "demo"}, headers=HTML).status_code == 303
    service.client.post("/queue/pause", data={"reason": "<i>noon"}, headers=HTML)
    assert "&lt;i&gt;noon" in service.client.get("/workers", headers=HTML).text
    service.client.post("/queue/resume", headers=HTML)
    assert "is paused" not in service.client.get("/workers", headers=HTML).text
    assert "Nothing is stored yet." in service.client.get("/storage", headers=HTML).text
    service.finish(service.claim(service.submit())[0], tensors=rows())
    assert "local" in service.client.get("/storage", headers=HTML).text
    assert "1 of 1 sessions" in service.client.post("/storage/verify", headers=HTML).text
    assert "Would remove" in service.client.post("/storage/gc", data={"dry_run": "true"}, headers=HTML).text
    assert "Removed" in service.client.post("/storage/gc", headers=HTML).text


def test_keys_are_created_shown_once_and_revoked(keyed: "Keyed") -> None:
    headers = HTML | keyed.headers()
    made = keyed.client.post("/keys", data={"name": "<b>", "role": "read"}, headers=headers).text
    match = re.search(r"acto_[0-9A-Za-z]+(?=</pre>)", made)
    assert match is not None
    assert "<b>" not in made
    reader = HTML | keyed.headers(match.group())
    page = keyed.client.get("/", headers=reader).text
    assert 'href="/keys"' not in page
    assert 'href="/submit"' not in page
    assert keyed.client.get("/keys", headers=reader).status_code == 403
    listed = keyed.client.get("/keys", headers=headers).text
    assert match.group() not in listed
    key_id = keyed.client.get("/v1/keys", headers=keyed.headers()).json()["data"][0]["id"]
    assert keyed.client.post(f"/keys/{key_id}/revoke", headers=headers).status_code == 303
    assert keyed.client.get("/", headers=reader).status_code == 303


def test_pages_of_other_owners_do_not_exist(keyed: "Keyed") -> None:
    alice = HTML | keyed.headers(keyed.make_key("submit", owner="alice"))
    bob = HTML | keyed.headers(keyed.make_key("submit", owner="bob"))
    spec = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "Hello"}]}
    job_id = keyed.client.post("/v1/jobs", json=spec, headers=alice).json()["id"]
    lease = keyed.claim(job_id)[0]
    session_id = keyed.finish(lease, tensors=rows())
    pages = [f"/jobs/{job_id}/samples/{lease.id}", f"/sessions/{session_id}"]
    for path in pages:
        assert keyed.client.get(path, headers=alice).status_code == 200
        assert keyed.client.get(path, headers=bob).status_code == 404
    for action in ("pin", "tags", "delete"):
        assert keyed.client.post(f"{pages[1]}/{action}", headers=bob).status_code == 404
    for path in ("/sessions", f"/sessions?job_id={job_id}", "/storage"):
        text = keyed.client.get(path, headers=bob).text
        assert str(session_id) not in text
        assert "alice" not in text
