"""Forms of the page with wrong values: each is refused with the reason, and nothing is done half way."""

from typing import Any

import pytest

from actograph.contract.resources import Score
from tests.integration.api.conftest import EMBED, Keyed, Service
from tests.integration.api.pages.test_pages import HTML, ORIGIN, page
from tests.integration.api.test_query_names import api_routes
from tests.support.routes import address

pytestmark = pytest.mark.integration

#: right values of the fields, by name
RIGHT = {
    "action": "tag", "tag": "a", "tags": "a, b", "ids": "ses_" + "0" * 32, "total": "0", "model": "demo",
    "name": "laptop", "role": "submit", "owner": "alice", "key": "none", "next": "/", "kind": "capture",
    "prompts": "Hello", "capture": "embed", "task": "gsm8k", "spec": "{}", "conditions": "[]",
    "dataset": "path:x", "limit": "1", "epochs": "1", "max_tokens": "1", "seed": "1", "temperature": "0",
    "top_p": "1",
}  # fmt: skip
#: fields that `submit.html` has, which the route reads by itself
SUBMITTED = (
    "kind", "model", "capture", "prompts", "task", "spec", "conditions", "dataset", "tags", "limit", "epochs",
    "max_tokens", "seed", "temperature", "top_p",
)  # fmt: skip
#: fields of other jobs than the right one
OTHER_KINDS = ("spec", "conditions", "dataset", "task")
WRONG = (
    "", "x" * 65, "x" * 2000, "bob smith", "nope", "-1", "[1]", "a\0b",
    ", ".join(f"tag-{number}" for number in range(17)),
)  # fmt: skip


def test_no_wrong_value_of_any_form_is_a_fault_of_the_service(
    service: Service, subtests: pytest.Subtests
) -> None:
    service.load_model()
    walked = 0
    for route in api_routes(service.app):
        if (
            route.include_in_schema
            or "POST" not in route.methods
            or route.path.startswith("/{")
            or not route.path
        ):
            continue
        fields = [parameter.alias for parameter in route.dependant.body_params]
        if route.path.startswith("/submit"):
            fields = list(SUBMITTED)
        right = {
            name: RIGHT[name] for name in fields if name not in ("spec", "conditions", "dataset", "task")
        }
        for name in fields:
            for wrong in WRONG:
                walked += 1
                with subtests.test(path=route.path, field=name, value=wrong[:40]):
                    answer = service.client.post(
                        address(route.path), data=right | {name: wrong}, headers=HTML | ORIGIN
                    )
                    assert answer.status_code in (200, 303, 400, 401, 404, 409, 413, 422), answer.text
                    assert "content-security-policy" in answer.headers, "it is a page"
    assert walked > 300


def stored_sessions(service: Service, count: int) -> list[str]:
    job_id = service.submit(inputs=[{"prompt": "x"}] * count, capture={"hooks": ["embed"]})
    return [str(service.finish(lease, tensors=EMBED)) for lease in service.claim(job_id, count)]


def test_a_refused_tag_changes_no_session_and_stops_no_other(service: Service) -> None:
    ids = stored_sessions(service, 3)
    full = [f"tag-{number:02}" for number in range(16)]
    service.client.patch(f"/v1/activations/sessions/{ids[0]}", json={"tags": full})

    def post(path: str, **form: Any) -> Any:
        return service.client.post(path, data=form, headers=HTML | ORIGIN)

    # the first has no room for a 17th; the others get theirs
    answer = post("/sessions", action="tag", ids=ids, tag="one more")
    assert (answer.status_code, "1 of 3 sessions stay as they are" in answer.text) == (409, True)
    tags = [service.client.get(f"/v1/activations/sessions/{one}").json()["tags"] for one in ids]
    assert tags == [full, ["one more"], ["one more"]]
    for path, form in (
        ("/sessions", {"action": "tag", "ids": ids, "tag": "x" * 65}),
        (f"/sessions/{ids[1]}", {"action": "tag", "tags": "x" * 65}),
        (f"/sessions/{ids[1]}", {"action": "tag", "tags": ",".join(f"t{number}" for number in range(17))}),
    ):
        answer = post(path, **form)
        assert answer.status_code == 422, answer.text
        assert "tag" in answer.text
    found = service.client.get(f"/v1/activations/sessions/{ids[1]}").json()["tags"]
    assert found == ["one more"]


def test_a_key_of_an_impossible_owner_is_refused(keyed: Keyed) -> None:
    headers = HTML | keyed.headers() | {"Sec-Fetch-Site": "same-origin"}
    form = {"name": "laptop", "role": "submit", "owner": "bob smith"}
    answer = keyed.client.post("/keys", data=form, headers=headers)
    assert (answer.status_code, "owner" in answer.text) == (422, True)
    assert "laptop" not in keyed.client.get("/keys", headers=headers).text


def test_an_interval_of_a_proportion_is_possible_and_has_a_width(service: Service) -> None:
    service.load_model()
    job_id = service.submit(inputs=[{"prompt": "x"}] * 12)
    for lease in service.claim(job_id, 12):
        service.finish(lease, scores={"exact_match,none": Score(value=0.0)})
    shown = page(service, f"/jobs/{job_id}")
    assert "95 % interval" in shown
    assert "0 to 0.2425" in shown  # Wilson's, of 0 of 12
