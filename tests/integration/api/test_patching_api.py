"""Interventions that take a row of a session: what is refused at submission, and with which field."""

from typing import Any

import numpy as np
import pytest

from actograph.contract.specs import MAX_CONDITIONS
from storage.sessions import source_rows
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import EMBED, Keyed, Problem, Service, capture_spec

POINTER = "/interventions/0/from"


def patch(session: str, **changes: Any) -> dict[str, Any]:
    source = {"session": session, "row": 2} | changes.pop("source", {})
    return {"hook": "embed", "op": "replace", "from": source, "positions": "last_prompt"} | changes


@pytest.fixture
def session_id(service: Service) -> str:
    service.load_model()
    (lease,) = service.claim(service.submit(capture={"hooks": ["embed"]}))
    wide = TensorRows("mlp_in.0", "F32", (6, 12), 0, np.zeros((6, 12), "<f4"))
    mean = TensorRows("attn_in.0", "I64", (6, 8), 0, np.zeros((6, 8), "<i8"))
    made = service.finish(lease, tensors=EMBED | {"mlp_in.0": wide, "attn_in.0": mean})
    assert made is not None
    return made


def test_a_row_of_a_session_is_taken_with_the_whole_id(service: Service, session_id: str) -> None:
    for source in ({}, {"row": -1}, {"hook": "hook_embed", "row": 5}, {"session": session_id[:12]}):
        body = capture_spec(interventions=[patch(session_id, source=source)])
        for route in ("/v1/estimate", "/v1/jobs"):
            answer = service.client.post(route, json=body)
            assert answer.status_code in (200, 202), answer.text
        stored = answer.json()["spec"]["interventions"][0]["from"]
        assert stored == {"hook": None, "row": 2} | source | {"session": session_id}


def test_what_cannot_be_patched_is_refused_by_field(
    service: Service,
    session_id: str,
    problem: Problem,
    subtests: pytest.Subtests,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        (patch("ses_" + "0" * 32), f"{POINTER}/session", "there is no session"),
        (patch(session_id, source={"hook": "embd"}), f"{POINTER}/hook", "Did you mean 'embed'?"),
        (patch(session_id, source={"hook": "attn_in.0"}), f"{POINTER}/hook", "no vector can have"),
        (patch(session_id, source={"row": 6}), f"{POINTER}/row", "its rows are of tokens 0 to 5"),
        (patch(session_id, source={"row": -4}), f"{POINTER}/row", "no row of token -4"),
        (patch(session_id, source={"hook": "mlp_in.0"}), POINTER, "12 numbers, embed is 8 wide"),
        (
            patch(session_id, vector=[1.0] * 8),
            "/interventions/0",
            "exactly one of vector, vector_id, from and sae",
        ),
        (patch(session_id, op="zero"), "/interventions/0", "takes no vector"),
        (patch(session_id, source={"sesion": "x"}), f"{POINTER}/sesion", "Did you mean 'session'?"),
    ]
    for one, pointer, says in cases:
        with subtests.test(says=says):
            body = capture_spec(interventions=[one])
            problem(service.client.post("/v1/jobs", json=body), 422, pointer=pointer, says=says)
    monkeypatch.setattr(source_rows, "MAX_ROWS", 1)
    body = capture_spec(interventions=[patch(session_id)] * 2)
    problem(service.client.post("/v1/jobs", json=body), 422, says="one job may have 1. Split the job")
    many = [{"name": f"c{number}"} for number in range(MAX_CONDITIONS + 1)]
    answer = service.client.post("/v1/jobs", json=capture_spec(conditions=many))
    problem(answer, 422, pointer="/conditions", says="1025 entries; at most 1024 are allowed")


def test_a_colleagues_session_is_not_there(keyed: Keyed, problem: Problem) -> None:
    keyed.load_model()
    alice, bob = (keyed.headers(keyed.make_key("submit")) for _ in range(2))
    made = keyed.client.post("/v1/jobs", json=capture_spec(capture={"hooks": ["embed"]}), headers=alice)
    (lease,) = keyed.claim(made.json()["id"])
    session_id = keyed.finish(lease, tensors=EMBED)
    assert session_id is not None
    body = capture_spec(interventions=[patch(session_id)])
    assert keyed.client.post("/v1/jobs", json=body, headers=alice).status_code == 202
    problem(keyed.client.post("/v1/jobs", json=body, headers=bob), 422, says="there is no session")
    chat = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Hi"}],
        "interventions": body["interventions"],
    }
    answer = keyed.client.post("/v1/chat/completions", json=chat, headers=bob)
    problem(answer, 400, says="there is no session")
