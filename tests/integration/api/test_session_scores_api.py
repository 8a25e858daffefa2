"""Scores by other programs: on sessions, as filters, as labels of a matrix over several jobs."""

from typing import Any

import numpy as np
import pytest

from actograph.client import ApiError, Client
from actograph.contract import resources
from actograph.contract.resources import Score
from storage.index.ids import new_session_id
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import EMBED, Keyed, Problem, Service
from tests.integration.api.ownership.conftest import Things, things  # noqa: F401 (a fixture)

PATH = "/v1/activations/sessions/scores"
HOOK = "resid_post.1"


@pytest.fixture
def session_ids(service: Service) -> list[str]:
    """Sessions of two jobs with one tag, oldest first; their rows are 0, 1, 2 and 3."""
    service.load_model()
    made = []
    for job in range(2):
        job_id = service.submit(inputs=[{"prompt": "a"}, {"prompt": "b"}], tags=["run=1"])
        for number, lease in enumerate(service.claim(job_id, 2), start=2 * job):
            rows = np.full((6, 8), number, "<f4")
            made.append(str(service.finish(lease, tensors={HOOK: TensorRows(HOOK, "F32", (6, 8), 0, rows)})))
    return made


def test_scores_are_shown_searched_and_labels(service: Service, url: str, session_ids: list[str]) -> None:
    with Client(url, "") as client:
        given = [
            {"session_id": one, "scores": {"match": {"value": n / 4, "answer": "x"}}, "correct": n % 2 == 1}
            for n, one in enumerate(session_ids)
        ]
        assert client.sessions.score(given) == 4
        client.sessions.score(
            [resources.SessionScores(session_id=session_ids[0], scores={"f1": 2})]  # type: ignore[dict-item]
        )
        shown = client.sessions.get(session_ids[0])
        assert shown.scores == {"match": Score(value=0.0, answer="x"), "f1": Score(value=2.0)}
        assert shown.correct is False, "a request without a verdict leaves it"
        assert {one.id for one in client.sessions.list(correct=True)} == {session_ids[1], session_ids[3]}

        matrix = client.matrix("layers_output[1]", label="match", tag="run=1", positions="all", reduce="mean")
        # two jobs with two problems each: the first problem of both comes first
        assert matrix.session_id.tolist() == [session_ids[n] for n in (0, 2, 1, 3)]
        assert matrix.features[:, 0].tolist() == [0, 2, 1, 3]
        assert matrix.labels.tolist() == [0, 0.5, 0.25, 0.75]
        assert len(client.matrix(HOOK, tag="run=1", correct=True)) == 2
        with pytest.raises(ApiError, match="Known: column:prompt, condition, correct, f1, match"):
            client.matrix(HOOK, tag="run=1", label="bleu")
        job = client.jobs.get(shown.job_id)
        assert job.matrix(HOOK, label="match").labels.tolist() == [0, 0.25]
        (condition,) = job.results().conditions.values()
        assert condition.metrics == {"match": 0.125, "match_stderr": 0.125, "f1": 2.0, "f1_stderr": None}


def test_all_of_a_request_is_stored_or_nothing(
    service: Service, session_ids: list[str], problem: Problem
) -> None:
    def send(*sessions: dict[str, Any]) -> Any:
        return service.client.post(PATH, json={"sessions": list(sessions)})

    good = {"session_id": session_ids[0], "scores": {"match": {"value": 1}}}
    problem(send(good, good | {"session_id": new_session_id()}), 404, says="no session")
    problem(send(good | {"scores": {"match": {"value": "high"}}}), 422)
    problem(send(), 422)
    problem(send(good, good), 422, says="is named twice")
    rows = service.upload({"question": "1 + 1?", "answer": "#### 2"})
    spec = {"kind": "evaluation", "model": "demo", "dataset": {"file_id": rows}, "capture": {}}
    job_id = service.client.post("/v1/jobs", json=spec).json()["id"]
    judged = service.finish(*service.claim(job_id), tensors=EMBED)
    problem(send(good, good | {"session_id": judged}), 422, says="rescoring")
    assert service.client.get(f"/v1/activations/sessions/{session_ids[0]}").json()["scores"] == {}


def test_sessions_of_others_cannot_be_scored(keyed: Keyed, things: Things, problem: Problem) -> None:  # noqa: F811
    body = {"sessions": [{"session_id": things.ids["session_id"], "scores": {}, "correct": True}]}
    for headers in (things.bob, keyed.headers(keyed.make_key("read", owner="alice"))):
        assert keyed.client.post(PATH, json=body, headers=headers).status_code in (403, 404)
    seen = keyed.client.get("/v1/activations/matrix", params={"hook": "embed"}, headers=things.bob)
    problem(seen, 404, says="no session matches")
    assert keyed.client.post(PATH, json=body, headers=things.alice).json()["sessions"] == 1
