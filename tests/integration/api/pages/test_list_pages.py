"""Pages of sessions, analyses, models, storage and keys."""

import pytest

from storage.sessions.writer import session_prefix
from storage.tables.models import SessionRow
from tests.integration.api.conftest import EMBED, Keyed, Service
from tests.integration.api.pages.test_pages import EVIL, HTML, ORIGIN, page, scored_job, sign_in

pytestmark = pytest.mark.integration


def test_sessions_are_found_and_changed(service: Service) -> None:
    assert "No session is stored yet." in page(service, "/sessions")
    job_id, _ = scored_job(service)
    ids = [
        one["id"] for one in service.client.get(f"/v1/activations/sessions?job_id={job_id}").json()["data"]
    ]
    for query, expected in [
        ("", ids),
        (f"?job={job_id}&model=demo", ids),
        ("?condition=plain", [ids[-1]]),
        ("?correct=yes", []),
        ("?tag=none", []),
        (f"?after={ids[0]}", ids[1:]),
    ]:
        shown = page(service, f"/sessions{query}")
        assert {one for one in ids if f'href="/sessions/{one}"' in shown} == set(expected), query

    def change(action: str, **form: str) -> tuple[int, str]:
        data = {"action": action, "ids": ids, **form}
        answer = service.client.post("/sessions?condition=plain", data=data, headers=HTML | ORIGIN)
        return answer.status_code, answer.headers.get("location", answer.text)

    for action, form in [("pin", {}), ("tag", {"tag": EVIL[:20]}), ("tag", {"tag": "b"})]:
        assert change(action, **form) == (303, "/sessions?condition=plain")
    found = service.client.get(f"/v1/activations/sessions/{ids[0]}").json()
    assert (found["pinned"], found["tags"]) == (True, sorted({EVIL, EVIL[:20], "b"}))
    assert "2 of 2 sessions stay as they are" in change("delete")[1]
    assert change("unpin")[0] == 303
    assert change("tag")[0] == 409, "a tag is missing"
    assert change("delete")[0] == 303
    assert "No session matches." in page(service, "/sessions?condition=plain")


def test_models_show_their_hooks_and_storage_its_owners(service: Service) -> None:
    assert "no worker has loaded demo yet" in page(service, "/models")
    service.load_model()
    shown = page(service, "/models?model=demo")
    assert "resid_post.0" in shown
    assert page(service, "/models?model=%3Cb%3E").count("&lt;b&gt;") == 1
    scored_job(service)
    assert "local" in page(service, "/storage")
    answer = service.client.post("/models", data={"model": "demo"}, headers=HTML | ORIGIN)
    assert answer.status_code == 303
    assert service.client.get(f"/v1{answer.headers['location']}").json()["kind"] == "load"


def test_vectors_are_found_by_name_and_deleted(service: Service) -> None:
    assert "No vector is stored yet." in page(service, "/vectors")
    for name in ("truth", "career"):
        body = {"name": name, "hook": "resid_post.1", "vector": [1.0, 2.0]}
        vector_id = service.client.post("/v1/vectors", json=body).json()["id"]
    assert 'href="/vectors?name=truth"' in page(service, "/vectors")
    assert 'href="/vectors?name=truth"' not in page(service, "/vectors?name=career")
    assert "No vector has this name." in page(service, "/vectors?name=none")
    answer = service.client.post(f"/vectors/{vector_id}", headers=HTML | ORIGIN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/vectors")
    assert [one["name"] for one in service.client.get("/v1/vectors").json()["data"]] == ["truth"]


def test_a_figure_of_an_analysis_is_an_image_without_scripts(service: Service) -> None:
    (lease,) = service.claim(service.submit(capture={"hooks": ["embed"]}), 1)
    session_id = service.finish(lease, tensors=EMBED)
    assert session_id is not None
    drawn = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
    folder = service.services.settings.home / "artifacts" / session_prefix(session_id)
    (folder / "probes.svg").write_bytes(drawn)
    with service.database.write() as session:
        row = session.get_one(SessionRow, session_id)
        row.files = {**row.files, "probes.svg": {"bytes": len(drawn), "sha256": "0" * 64}}
    answer = service.client.get(f"/figures/{session_id}/probes.svg")
    assert (answer.content, answer.headers["content-type"]) == (drawn, "image/svg+xml")
    assert "sandbox" in answer.headers["content-security-policy"]
    assert service.client.get(f"/figures/{session_id}/none.svg").status_code == 404
    assert "actograph analyse probe JOB" in page(service, "/analyses")


def test_keys_are_made_shown_once_and_revoked_by_admins_alone(keyed: Keyed) -> None:
    sign_in(keyed, keyed.make_key("read"))
    assert "403" in page(keyed, "/keys", 403)
    sign_in(keyed, keyed.make_key("admin"))
    form = {"name": "<b>laptop", "role": "submit"}
    made = keyed.client.post("/keys", data=form, headers=HTML | ORIGIN)
    assert "acto_" in made.text and "&lt;b&gt;laptop" in made.text
    assert "The new key" not in page(keyed, "/keys")
    listed = keyed.client.get("/v1/keys", headers=keyed.headers()).json()["data"]
    (key_id,) = [one["id"] for one in listed if one["name"] == "<b>laptop"]
    answer = keyed.client.post(f"/keys/{key_id}", headers=HTML | ORIGIN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/keys")
    revoked = keyed.client.get(f"/v1/keys/{key_id}", headers=keyed.headers()).json()
    assert revoked["revoked_at"] is not None
