"""Rescoring over HTTP: completions stay, verdicts change, all at once."""

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from actograph.contract.resources import Score
from storage.tables.models import JobRow, SampleRow, SessionRow
from tests.integration.api.conftest import EMBED

STRICT, NUMERIC = "exact_match,strict-match", "exact_match,numeric"
#: completion, and the verdicts of strict-match and numeric on the gold 5
COMPLETIONS = [("#### 5", 1, 1), ("The answer is $5.00.", 0, 1), ("#### 7", 0, 0), ("no idea", 0, 0)]


@pytest.fixture
def job(service: Any) -> str:
    """An evaluation that has ended, scored by strict-match alone."""
    rows = [{"question": f"q{i}", "answer": "so\n#### 5"} for i in range(len(COMPLETIONS))]
    spec = {
        "kind": "evaluation",
        "model": "demo",
        "dataset": {"file_id": service.upload(*rows)},
        "scorers": ["strict-match"],
        "capture": {"points": ["embed"]},
    }
    answer = service.client.post("/v1/jobs", json=spec)
    assert answer.status_code == 202, answer.text
    job_id = str(answer.json()["id"])
    for lease, (completion, strict, _) in zip(service.claim(job_id, 10), COMPLETIONS, strict=True):
        scores = {STRICT: Score(value=strict, answer="5" if strict else None)}
        service.finish(lease, tensors=EMBED, correct=bool(strict), scores=scores)
        with service.database.write() as session:
            session.execute(
                sa.update(SampleRow).where(SampleRow.id == lease.id).values(completion=completion)
            )
    return job_id


def rescore(service: Any, job_id: str, *scorers: Any) -> Any:
    return service.client.post(f"/v1/jobs/{job_id}/rescore", json={"scorers": list(scorers)})


def test_new_scores_stand_beside_the_old_ones(service: Any, job: str) -> None:
    answer = rescore(service, job, "numeric", {"name": "efficiency", "target_tokens": 2, "max_tokens": 6})
    assert answer.status_code == 200, answer.text
    condition = answer.json()["conditions"]["baseline"]
    assert condition["metrics"][NUMERIC] == 0.5
    assert condition["metrics"][STRICT] == 0.25
    assert condition["metrics"]["efficiency,none"] == 0.5
    assert condition["unparsed"] == {NUMERIC: 1, "efficiency,none": 0, STRICT: 3}
    assert condition["unparsed_rate"][NUMERIC] == 0.25
    assert (condition["truncated"], condition["truncated_rate"]) == (0, 0.0)
    assert service.client.get(f"/v1/jobs/{job}/results").json() == answer.json()
    samples = service.client.get(f"/v1/jobs/{job}/samples").json()["data"]
    assert [s["completion"] for s in samples] == [completion for completion, *_ in COMPLETIONS]
    assert [s["scores"][STRICT]["value"] for s in samples] == [strict for _, strict, _ in COMPLETIONS]
    assert [s["scores"][NUMERIC]["value"] for s in samples] == [numeric for *_, numeric in COMPLETIONS]
    assert samples[1]["scores"][NUMERIC]["answer"] == "5"


def test_sessions_follow_the_first_scorer_of_the_request(service: Any, job: str) -> None:
    def right() -> list[int]:
        found = service.client.get(f"/v1/activations/sessions?job_id={job}&correct=true&order=asc")
        return sorted(item["sample_index"] for item in found.json()["data"])

    assert right() == [0]
    rescore(service, job, "numeric")
    assert right() == [0, 1]
    rescore(service, job, "strict-match")
    assert right() == [0]


def everything(service: Any) -> Any:
    with service.database.read() as session:
        return [
            session.execute(sa.select(table).order_by(table.c.id)).all()
            for table in (JobRow.__table__, SampleRow.__table__, SessionRow.__table__)
        ]


def test_a_gold_that_does_not_fit_changes_nothing(
    service: Any, job: str, problem: Callable[..., Any]
) -> None:
    with service.database.write() as session:
        last = session.scalars(sa.select(SampleRow).order_by(SampleRow.position.desc())).first()
        last.input = {"question": "q", "answer": "five"}
    before = everything(service)
    problem(rescore(service, job, "numeric"), 422, says="row 3: the target 'five' is not a number")
    assert everything(service) == before
