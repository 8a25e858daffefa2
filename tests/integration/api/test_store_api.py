"""/v1/store over HTTP."""

from typing import TYPE_CHECKING, Any

import pytest

from storage.sessions.writer import TensorRows

if TYPE_CHECKING:
    from tests.integration.api.conftest import Problem, Service

pytestmark = pytest.mark.integration


def finish(service: "Service", count: int) -> list[str]:
    job_id = service.submit(inputs=[{"prompt": str(i)} for i in range(count)])
    rows = {"embed": TensorRows("embed", "F32", (6, 8), 0, bytes(6 * 8 * 4))}
    made = [service.finish(lease, tensors=rows) for lease in service.claim(job_id, count)]
    return [session_id for session_id in made if session_id is not None]


def every_page(service: "Service", path: str, **params: Any) -> list[dict[str, Any]]:
    pages: list[dict[str, Any]] = []
    after = None
    while after is not None or not pages:
        sent = params | ({"after": after} if after else {})
        answer = service.client.post(path, params=sent)
        assert answer.status_code == 200, answer.text
        pages.append(answer.json())
        after = pages[-1]["next"]
    return pages


def test_a_check_reads_all_and_names_what_is_wrong(service: "Service") -> None:
    made = finish(service, 3)
    service.services.store.delete_prefix(f"sessions/{made[1]}")
    pages = every_page(service, "/v1/store/verify")
    assert sum(page["checked"] for page in pages) == 3
    problems = [problem for page in pages for problem in page["problems"]]
    assert [(p["id"], p["problem"]) for p in problems] == [(made[1], "missing")]
    assert sum(p["checked"] for p in every_page(service, "/v1/store/verify", sample=0.000001)) == 0


def test_clearing_has_a_dry_run(service: "Service") -> None:
    finish(service, 1)
    for dry_run in (True, False):
        pages = every_page(service, "/v1/store/gc", dry_run=dry_run)
        assert all(page["dry_run"] is dry_run for page in pages)
        assert sum(page["expired_sessions"] + len(page["orphans"]) for page in pages) == 0


def test_a_page_that_does_not_exist_is_refused(service: "Service", problem: "Problem") -> None:
    for path in ("/v1/store/gc", "/v1/store/verify"):
        problem(service.client.post(path, params={"after": "../x"}), 422, pointer="/after")
        problem(service.client.post(path, params={"seconds": 0}), 422, pointer="/seconds")
    for sample in (0, 1.5, "nan"):
        problem(service.client.post("/v1/store/verify", params={"sample": sample}), 422, pointer="/sample")
