"""Pages as HTML: what they show, that text stays text, and who may see them."""

import re

import pytest

from actograph.contract.resources import Score
from api.browser import COOKIE
from api.pages.live import digest
from storage.queue import workers
from storage.tables.models import SampleRow
from tests.integration.api.conftest import EMBED, Keyed, Service

pytestmark = pytest.mark.integration

HTML = {"Accept": "text/html"}
ORIGIN = {"Origin": "http://127.0.0.1:8420"}
EVIL = "<script>alert(1)</script>&\u202e\U0001f600"
CONDITIONS = [{"name": "plain"}, {"name": "other"}]


def page(service: Service, path: str, status: int = 200) -> str:
    answer = service.client.get(path, headers=HTML)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    # no text of a user became a tag, and nothing is inline
    assert not re.search(r"<(script|style)>|<b>|<img (?!src=\"/static)| style=| on[a-z]+=", answer.text)
    return answer.text


def scored_job(service: Service) -> tuple[str, list[str]]:
    """A job of two conditions with hostile texts: a right sample, a wrong one, and a failed one."""
    service.load_model()
    inputs = [{"prompt": EVIL}, {"prompt": "two"}]
    job_id = service.submit(tags=[EVIL], inputs=inputs, conditions=CONDITIONS, capture={"hooks": ["embed"]})
    leases = service.claim(job_id, count=4)
    for lease, value in zip(leases, (1.0, 0.0), strict=False):
        service.finish(lease, scores={"exact": Score(value=value, answer=EVIL)}, tensors=EMBED)
    with service.database.write() as session:
        samples = [session.get_one(SampleRow, lease.id) for lease in leases]
        samples[0].prompt, samples[0].completion = EVIL, f"<think>{EVIL}</think> one two {EVIL}"
        samples[0].messages = [{"role": "tool", "content": EVIL, "error": True}]
        samples[1].completion = "one three"
        samples[2].status, samples[2].error = "failed", {"type": "invalid_request", "message": EVIL}
    return job_id, [lease.id for lease in leases]


def test_empty_pages_say_so(service: Service) -> None:
    assert "No job was submitted yet." in page(service, "/")
    assert "No job was submitted yet." in page(service, "/jobs")
    assert "No job matches." in page(service, "/jobs?text=nothing")
    assert "404 Not Found" in page(service, "/jobs/job_none", 404)
    assert "404 Not Found" in page(service, "/nothing", 404)


def test_the_overview_says_what_a_card_does(service: Service) -> None:
    service.load_model()
    with service.database.write() as session:
        (row,) = workers.find(session)
        memory = {
            "device_used_bytes": 20_000_000_000, "device_total_bytes": 80_000_000_000,
            "window_milliseconds": 5000, "window_computed_tokens": 61_725, "window_generated_tokens": 1234,
            "window_pass_milliseconds": 4600,
        }  # fmt: skip
        workers.heartbeat(session, row.id, memory)
    shown = page(service, "/")
    for text in ("12,345 <small>246.8 generated", "92 %", "20.0 GB of 80.0 GB", 'value="20000000000"'):
        assert text in shown
    before = digest(service.services)
    with service.database.write() as session:
        workers.heartbeat(session, row.id, memory)
    assert digest(service.services) == before, "nothing to see has changed"
    with service.database.write() as session:
        workers.heartbeat(session, row.id, memory | {"window_computed_tokens": 0})
    assert digest(service.services) != before
    assert ">0 <small>" in page(service, "/")


def test_pages_show_a_job_and_its_samples(service: Service) -> None:
    job_id, (right, wrong, failed, waiting) = scored_job(service)
    assert job_id in page(service, "/")
    shown = page(service, f"/jobs/{job_id}")
    for sample_id, verdict in ((right, "right"), (wrong, "wrong"), (failed, "failed"), (waiting, "leased")):
        assert re.search(rf'class="cell {verdict}" href="/jobs/{job_id}/samples/{sample_id}"', shown)
    assert "&lt;script&gt;" in shown
    compared = page(service, f"/jobs/{job_id}/comparison?baseline=plain")
    assert "McNemar p" in compared
    assert "&lt;b" in page(service, f"/jobs/{job_id}/comparison?baseline=%3Cb%3E")


def test_a_sample_shows_its_texts_and_the_difference(service: Service) -> None:
    job_id, (right, _, failed, _) = scored_job(service)
    path = f"/jobs/{job_id}/samples/{right}"
    shown = page(service, path)
    for title in ("Reasoning", "Completion", "Turns", "Verdicts", "Activations"):
        assert title in shown
    assert 'rel="next">Next</a>' in shown
    different = page(service, f"{path}?against=other")
    assert "<ins>two " in different
    assert "<del>three</del>" in different
    assert "404" in page(service, f"{path}?against=none", 404)
    assert "invalid_request" in page(service, f"/jobs/{job_id}/samples/{failed}")


def test_a_long_completion_is_cut(service: Service) -> None:
    job_id, (right, *_) = scored_job(service)
    with service.database.write() as session:
        session.get_one(SampleRow, right).completion = "<b>" * 1_700_000
    shown = page(service, f"/jobs/{job_id}/samples/{right}")
    assert len(shown) < 1_000_000
    assert "of 5,100,000 characters" in shown


def test_filters_choose_among_all_jobs(service: Service) -> None:
    ids = [service.submit(tags=[tag], metadata={"note": f"50% of {tag}"}) for tag in ("a", "b")]
    for query, expected in (
        ("", ids),
        ("?tag=a", ids[:1]),
        ("?text=50%25 of B", ids[1:]),
        ("?text=50%25B", []),
        (f"?text={ids[0][4:20]}", ids[:1]),
        ("?model=demo&kind=capture&status=queued", ids),
        ("?model=other", []),
        ("?status=failed", []),
        (f"?after={ids[1]}", ids[:1]),
    ):
        shown = page(service, f"/jobs{query}")
        assert {one for one in ids if f'href="/jobs/{one}"' in shown} == set(expected), query


def test_ticked_jobs_are_changed(service: Service) -> None:
    ids = [service.submit() for _ in range(3)]

    def change(action: str, *chosen: str) -> tuple[int, str]:
        answer = service.client.post(
            "/jobs?status=queued", data={"action": action, "ids": chosen}, headers=HTML | ORIGIN
        )
        return answer.status_code, answer.headers.get("location", answer.text)

    assert change("cancel", *ids[:2]) == (303, "/jobs?status=queued")
    statuses = [service.client.get(f"/v1/jobs/{one}").json()["status"] for one in ids]
    assert statuses == ["cancelled", "cancelled", "queued"]
    status, text = change("retry", *ids)
    assert status == 409
    assert "1 of 3 jobs stay as they are" in text
    assert change("delete", *ids)[0] == 303
    assert change("explode", ids[0])[0] == 409


def test_all_jobs_of_a_filter_are_changed(service: Service) -> None:
    ids = [service.submit(tags=[tag]) for tag in ("a", "a", "b")]
    query = "?tag=a"
    shown = page(service, f"/jobs{query}")
    assert f'hx-get="/jobs/all{query}"' in shown
    shown = page(service, f"/jobs/all{query}")
    assert "2 jobs match" in shown and "Cancel 2" in shown and "Delete 2" in shown

    def change(action: str, total: int) -> tuple[int, str]:
        form = {"action": action, "total": total}
        answer = service.client.post(f"/jobs/all{query}", data=form, headers=HTML | ORIGIN)
        return answer.status_code, answer.headers.get("location", answer.text)

    status, text = change("delete", 1)
    assert status == 409 and "2 jobs match now" in text
    assert change("cancel", 2) == (303, f"/jobs{query}")
    statuses = [service.client.get(f"/v1/jobs/{one}").json()["status"] for one in ids]
    assert statuses == ["cancelled", "cancelled", "queued"]
    assert change("delete", 2)[0] == 303
    assert [one["id"] for one in service.client.get("/v1/jobs").json()["data"]] == ids[2:]


def test_a_form_makes_a_job_and_its_json(service: Service) -> None:
    service.load_model()
    form = {"kind": "capture", "model": "demo", "prompts": f"{EVIL}\n\ntwo", "capture": "resid_post@0,2"}
    form |= {"max_tokens": "8", "tags": "a, b", "spec": '{"metadata": {"from": "form"}}'}
    shown = service.client.post("/submit/estimate", data=form, headers=HTML | ORIGIN).text
    assert "2 samples" in shown
    assert "&lt;script&gt;" in shown
    answer = service.client.post("/submit", data=form, headers=HTML | ORIGIN)
    assert answer.status_code == 303
    job = service.client.get(f"/v1{answer.headers['location']}").json()
    assert (job["progress"]["total"], job["tags"], job["metadata"]) == (2, ["a", "b"], {"from": "form"})
    assert job["spec"]["capture"]["layers"] == [0, 2]


def test_a_form_reads_no_file_and_explains_mistakes(service: Service, subtests: pytest.Subtests) -> None:
    secret = service.services.settings.home / "task.yaml"
    secret.write_text("secret: 1")
    for change, reason in (
        ({"task": str(secret)}, "choose a task"),
        ({"task": "gsm8k", "dataset": str(secret)}, "dataset: use"),
        ({"task": "gsm8k", "limit": "x"}, "is not a number"),
        ({"task": "gsm8k", "conditions": "{}"}, "not a JSON list"),
        ({"task": "gsm8k", "spec": "{"}, "is not JSON"),
        ({"task": "gsm8k", "spec": '{"surprise": 1}'}, "unknown field"),
    ):
        with subtests.test(change=change):
            form = {"kind": "evaluation", "model": "demo"} | change
            shown = service.client.post("/submit/estimate", data=form, headers=HTML)
            assert shown.status_code == 200
            assert reason in shown.text
            answer = service.client.post("/submit", data=form, headers=HTML | ORIGIN)
            assert answer.status_code == 422


def sign_in(keyed: Keyed, key: str) -> None:
    data = {"key": key, "next": "/jobs?tag=a"}
    answer = keyed.client.post("/sign-in", data=data, headers=HTML | ORIGIN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs?tag=a")
    assert "httponly" in answer.headers["set-cookie"].lower()
    assert key not in answer.headers["set-cookie"]


def test_a_browser_signs_in_and_out(keyed: Keyed) -> None:
    answer = keyed.client.get("/jobs?tag=a", headers=HTML)
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=%2Fjobs%3Ftag%3Da")
    assert 'value="/jobs?tag=a"' in keyed.client.get(answer.headers["location"], headers=HTML).text
    part = keyed.client.get("/jobs", headers={"HX-Request": "true"})
    assert (part.status_code, part.headers["hx-refresh"]) == (401, "true")
    program = keyed.client.get("/jobs")
    assert program.headers["content-type"] == "application/problem+json"
    refused = keyed.client.post("/sign-in", data={"key": "acto_wrong"}, headers=HTML | ORIGIN)
    assert refused.status_code == 401
    assert "not valid" in refused.text
    assert COOKIE not in keyed.client.cookies
    sign_in(keyed, keyed.make_key("read"))
    assert "Sign out" in page(keyed, "/jobs")
    assert keyed.client.post("/sign-out", headers=ORIGIN).status_code == 303
    assert keyed.client.get("/jobs", headers=HTML).status_code == 303


def test_sign_in_leads_to_no_other_site(keyed: Keyed) -> None:
    for target in ("//evil.example", "https://evil.example", "/\\evil.example", "jobs", "/a\tb"):
        data = {"key": keyed.make_key("read"), "next": target}
        answer = keyed.client.post("/sign-in", data=data, headers=HTML | ORIGIN)
        assert answer.headers["location"] == "/"


def test_a_cookie_changes_nothing_for_other_sites(keyed: Keyed) -> None:
    sign_in(keyed, keyed.make_key("admin"))
    other_port = {"Origin": "http://127.0.0.1:3000"}
    for headers in ({}, other_port, {"Origin": "null"}, ORIGIN | {"Sec-Fetch-Site": "cross-site"}):
        assert keyed.client.post("/v1/queue/pause", headers=headers).status_code == 403
        assert keyed.client.post("/jobs", data={"action": "cancel"}, headers=headers).status_code == 403
    for headers in (ORIGIN, {"Sec-Fetch-Site": "same-origin"}):
        assert keyed.client.post("/v1/queue/resume", headers=headers).status_code == 200


def test_a_role_sees_what_it_may_do(keyed: Keyed) -> None:
    job_id = keyed.client.post(
        "/v1/jobs",
        json={"kind": "capture", "model": "demo", "inputs": [{"prompt": "x"}]},
        headers=keyed.headers(),
    ).json()["id"]
    sign_in(keyed, keyed.make_key("admin"))
    assert 'value="cancel"' in page(keyed, f"/jobs/{job_id}")
    sign_in(keyed, keyed.make_key("read"))
    assert job_id not in page(keyed, "/jobs")
    assert "404" in page(keyed, f"/jobs/{job_id}", 404)
    assert 'href="/submit"' not in page(keyed, "/")
    assert "403" in page(keyed, "/submit", 403)
