"""Changes of many sessions or jobs by forms: a question that counts, then the change."""

import html
import re
from typing import TYPE_CHECKING, Any

import pytest

from storage.sessions.writer import TensorRows

if TYPE_CHECKING:
    from httpx2 import Response

    from tests.integration.api.conftest import Keyed, Service

pytestmark = pytest.mark.integration

HTML = {"Accept": "text/html", "Origin": "http://127.0.0.1:8420"}
HIDDEN = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')


def sessions(service: "Service", count: int, **job: Any) -> list[str]:
    """Stored sessions of one job."""
    job_id = service.submit(inputs=[{"prompt": str(number)} for number in range(count)], **job)
    rows = TensorRows(name="embed", dtype="F32", first_row=0, shape=(6, 8), data=bytes(192))
    found = [service.finish(lease, tensors={"embed": rows}) for lease in service.claim(job_id, count)]
    return [str(one) for one in found]


def ask(service: "Service", path: str, headers: dict[str, str] | None = None, **fields: Any) -> "Response":
    answer: Response = service.client.post(path, data=fields, headers=headers or HTML)
    return answer


def confirm(service: "Service", path: str, question: "Response", action: str) -> "Response":
    """Send the form of the question."""
    assert question.status_code == 200, question.text
    fields: dict[str, list[str]] = {}
    for name, value in HIDDEN.findall(question.text):
        fields.setdefault(name, []).append(html.unescape(value))
    return ask(service, path, None, action=action, **fields)


def state(service: "Service") -> dict[str, tuple[bool, list[str]]]:
    """Session -> whether it is pinned, and its tags."""
    listed = service.client.get("/v1/activations/sessions?limit=100").json()["data"]
    return {one["id"]: (one["pinned"], sorted(one["tags"])) for one in listed}


def test_chosen_sessions_are_pinned_tagged_and_deleted(service: "Service") -> None:
    first, second, third = sessions(service, 3, tags=["night"])
    for action, fields, after in (
        ("pin", {}, (True, ["night"])),
        ("unpin", {}, (False, ["night"])),
        ("tag", {"tags": "a, b,a"}, (False, ["a", "b"])),
    ):
        before = state(service)
        question = ask(service, "/sessions/change", None, ids=[first, second], action=action, **fields)
        assert "2 sessions?" in question.text
        assert state(service) == before
        assert confirm(service, "/sessions/change", question, action).status_code == 303
        assert state(service) == {first: after, second: after, third: (False, ["night"])}
    confirm(service, "/sessions/change", ask(service, "/sessions/change", ids=[first], action="pin"), "pin")
    question = ask(service, "/sessions/change", ids=[first, second], action="delete")
    assert "Delete 1 session?" in question.text
    assert "1 pinned sessions stay" in question.text
    confirm(service, "/sessions/change", question, "delete")
    assert set(state(service)) == {first, third}


def test_all_that_match_are_changed_but_none_that_came_later(service: "Service") -> None:
    early = sessions(service, 60, tags=["night"])
    other = sessions(service, 1, tags=["day"])
    listed = service.client.get("/sessions?tag=night", headers=HTML).text
    assert 'name="tag" value="night"' in listed
    question = ask(service, "/sessions/change", scope="all", tag="night", action="delete")
    assert "Delete 60 sessions?" in question.text
    late = sessions(service, 1, tags=["night"])
    answer = confirm(service, "/sessions/change", question, "delete")
    assert answer.headers["location"] == "/sessions?tag=night"
    assert set(state(service)) == {*other, *late}
    assert not set(early) & set(state(service))


def test_chosen_jobs_are_cancelled_and_retried(service: "Service") -> None:
    waiting = [service.submit() for _ in range(2)]
    sessions(service, 1)
    (done,) = [one["id"] for one in service.client.get("/v1/jobs?status=completed").json()["data"]]
    question = ask(service, "/jobs/change", ids=[*waiting, done], action="cancel")
    assert "Cancel 2 jobs?" in question.text
    assert "1 other job cannot be cancelled" in question.text
    later = service.submit()
    assert confirm(service, "/jobs/change", question, "cancel").status_code == 303
    statuses = {one["id"]: one["status"] for one in service.client.get("/v1/jobs").json()["data"]}
    assert statuses == {**dict.fromkeys(waiting, "cancelled"), done: "completed", later: "queued"}
    question = ask(service, "/jobs/change", scope="all", status="cancelled", action="retry")
    answer = confirm(service, "/jobs/change", question, "retry")
    assert answer.headers["location"] == "/jobs?status=cancelled"
    statuses = {one["id"]: one["status"] for one in service.client.get("/v1/jobs").json()["data"]}
    assert statuses == {**dict.fromkeys(waiting, "queued"), done: "completed", later: "queued"}
    # the same form again: a queued job cannot be retried and stays
    assert confirm(service, "/jobs/change", question, "retry").status_code == 303


@pytest.mark.parametrize("path", ["/sessions/change", "/jobs/change"])
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"action": "nothing"}, 422),
        ({"action": "delete"}, 422),
        ({"action": "cancel"}, 422),
        ({"action": "pin", "ids": ["x"]}, 404),
        ({"action": "retry", "ids": ["job_" + "0" * 32]}, 404),
        ({"action": "retry", "confirmed": "<script>"}, 404),
    ],
)
def test_faulty_forms_change_nothing(
    service: "Service", path: str, fields: dict[str, Any], status: int
) -> None:
    kept = sessions(service, 1)
    job_id = service.submit()
    answer = ask(service, path, None, **fields)
    assert answer.status_code in (status, 422)
    assert "text/html" in answer.headers["content-type"]
    assert "<script>" not in answer.text
    assert state(service) == {kept[0]: (False, [])}
    assert service.client.get(f"/v1/jobs/{job_id}").json()["status"] == "queued"


def test_hostile_fields_stay_texts(service: "Service") -> None:
    sessions(service, 1, tags=["<b>"])
    for fields in ({"action": "tag", "tags": "<b>"}, {"action": "delete", "tag": "<b>"}):
        question = ask(service, "/sessions/change", None, scope="all", **fields)
        assert "1 session?" in question.text
        assert "<b>" not in question.text


def test_roles_and_owners(keyed: "Keyed") -> None:
    alice = HTML | keyed.headers(keyed.make_key("submit", owner="alice"))
    bob = HTML | keyed.headers(keyed.make_key("submit", owner="bob"))
    reader = HTML | keyed.headers(keyed.make_key("read", owner="alice"))
    spec = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "Hello"}]}
    job_id = keyed.client.post("/v1/jobs", json=spec, headers=alice).json()["id"]
    rows = TensorRows(name="embed", dtype="F32", first_row=0, shape=(6, 8), data=bytes(192))
    session_id = keyed.finish(keyed.claim(job_id)[0], tensors={"embed": rows})
    for path in ("/jobs", "/sessions"):
        assert f'action="{path}/change"' in keyed.client.get(path, headers=alice).text
        assert "/change" not in keyed.client.get(path, headers=reader).text
        assert ask(keyed, f"{path}/change", reader, action="pin").status_code == 403
    for fields in ({"ids": [session_id]}, {"scope": "all"}):
        question = ask(keyed, "/sessions/change", bob, action="delete", **fields)
        assert "Delete 0 sessions?" in question.text
        ask(keyed, "/sessions/change", bob, action="delete", before="9e9", **fields)
    assert ask(keyed, "/jobs/change", bob, action="retry", ids=[job_id]).status_code == 404
    assert "Retry 0 jobs?" in ask(keyed, "/jobs/change", bob, action="retry", scope="all").text
    assert keyed.client.get(f"/sessions/{session_id}", headers=alice).status_code == 200
