"""The unique beginning of an id stands for it in paths, bodies and filters alike."""

import json
from typing import Any

import pytest

from tests.integration.api.conftest import EMBED, Problem, Service

SHORT = 14


@pytest.fixture
def captured(service: Service) -> tuple[str, str]:
    """A finished job and its session."""
    service.load_model()
    job_id = service.submit(capture={"hooks": ["embed"]})
    (lease,) = service.claim(job_id, 1)
    session_id = service.finish(lease, tensors=EMBED)
    assert session_id is not None
    return job_id, session_id


def places(service: Service, job_id: str, session_id: str) -> list[tuple[str, str, Any]]:
    """Requests that name an id, of which a part stands for the whole: method, path, body."""
    rows = service.upload({"text": "a"})[:SHORT]
    batch = service.upload_bytes(
        "batch.jsonl",
        json.dumps(
            {
                "custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
                "body": {"model": "demo", "messages": [{"role": "user", "content": "Hi"}]},
            }
        ).encode(),
        data={"purpose": "batch"},
    )[:SHORT]  # fmt: skip
    job, session, base = job_id[:SHORT], session_id[:SHORT], "/v1/activations"
    score = {"session_id": session, "scores": {"own": 1}}
    analysis = {"kind": "outliers", "hooks": ["embed"]}
    text = {"kind": "capture", "model": "demo", "dataset": {"file_id": rows}}
    return [
        ("GET", f"/v1/jobs/{job}", None),
        ("GET", f"{base}/sessions/{session}", None),
        ("GET", f"{base}/sessions?job_id={job}", None),
        ("GET", f"{base}/sessions/stats?job_id={job}", None),
        ("GET", f"{base}/matrix?hook=embed&job_id={job}", None),
        ("PATCH", f"{base}/sessions?job_id={job}", {"tags": ["seen"]}),
        ("POST", f"{base}/sessions/scores", {"sessions": [score]}),
        ("POST", "/v1/jobs", {"kind": "probe", "sessions": {"jobs": [job]}, "hooks": ["embed"]}),
        ("POST", "/v1/jobs", {"kind": "probe", "sessions": {"ids": [session]}, "hooks": ["embed"]}),
        ("POST", "/v1/jobs", {"kind": "compare", "sessions": {"jobs": [job]}, "other": {"ids": [session]}}),
        ("POST", "/v1/estimate", analysis | {"sessions": {"jobs": [job]}}),
        ("POST", "/v1/jobs", text),
        ("POST", "/v1/batches", {"input_file_id": batch, "endpoint": "/v1/chat/completions"}),
        ("DELETE", f"{base}/sessions?job_id={job}", None),
    ]


def test_every_place_takes_the_beginning_of_an_id(
    service: Service, captured: tuple[str, str], subtests: pytest.Subtests
) -> None:
    job_id, session_id = captured
    for method, path, body in places(service, job_id, session_id):
        with subtests.test(f"{method} {path.partition('?')[0]}", body=body):
            answer = service.client.request(method, path, json=body)
            # a service that takes the id may still refuse the analysis of one row
            assert "there is no" not in answer.text
            assert "no session matches" not in answer.text
            assert answer.status_code in (200, 202, 422), answer.text
            if body is None or "kind" not in body:
                assert answer.status_code == 200, answer.text
            if "sessions/stats" in path:
                assert answer.json()["sessions"] == 1
            if method in ("PATCH", "DELETE") and "?" in path:
                assert answer.json()["sessions"] == 1
            if body and "dataset" in body:
                stored = answer.json()["spec"]["dataset"]["file_id"]
                assert len(stored) == len("file_") + 32, "the spec has the whole id"


def test_a_beginning_of_several_ids_is_refused(service: Service, problem: Problem) -> None:
    service.load_model()
    many = [service.submit()[:5] for _ in range(17)]
    twice = next(one for one in many if many.count(one) > 1)
    for method, path, body in [
        ("GET", f"/v1/activations/sessions?job_id={twice}", None),
        ("POST", "/v1/jobs", {"kind": "outliers", "sessions": {"jobs": [twice]}}),
    ]:
        problem(service.client.request(method, path, json=body), 422, says="is not unique")
