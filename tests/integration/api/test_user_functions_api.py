"""Tools and scorers of the operator over HTTP: named at submission, listed, and used to rescore."""

from pathlib import Path
from typing import Any

import pytest

from actograph.settings import Settings

LAB = """
def units(completion, target, question):
    return {"value": question == "q1", "answer": completion.split()[-1]}
"""


@pytest.fixture
def settings(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    (tmp_path / "lab.py").write_text(LAB)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    functions = {"user_tools": ("stock=lab:stock",), "user_scorers": ("units=lab:units",)}
    return settings.model_copy(update=functions)


def submit(service: Any, **changes: Any) -> Any:
    spec = {"kind": "evaluation", "model": "demo", "dataset": {"file_id": service.upload(*rows())}}
    return service.client.post("/v1/jobs", json=spec | changes)


def rows() -> list[dict[str, str]]:
    return [{"question": f"q{i}", "answer": "so\n#### 5"} for i in range(2)]


def test_names_are_checked_at_submission_and_listed(service: Any) -> None:
    for changes, message in [
        ({"tools": "clock"}, "there is no tool 'clock'; the tools are calculator, stock"),
        ({"scorers": ["unit"]}, "there is no scorer 'unit'; the scorers are strict-match, "),
    ]:
        answer = submit(service, **changes)
        assert answer.status_code == 422
        assert answer.json()["detail"].startswith(message)
    assert submit(service, tools=["calculator", "stock"], scorers=["units"]).status_code == 202
    found = service.client.get("/v1/capabilities").json()["evaluation"]
    assert found["tools"] == ["none", "calculator", "stock"]
    assert found["scorers"][-1] == "units"


def test_jobs_are_scored_again_by_a_scorer_of_the_operator(service: Any) -> None:
    job_id = submit(service).json()["id"]
    for lease in service.claim(job_id, 10):
        service.finish(lease)
    answer = service.client.post(f"/v1/jobs/{job_id}/rescore", json={"scorers": ["units"]})
    assert answer.status_code == 200, answer.text
    assert answer.json()["conditions"]["baseline"]["metrics"]["units,none"] == 0.5
    samples = service.client.get(f"/v1/jobs/{job_id}/samples").json()["data"]
    assert [one["scores"]["units,none"] for one in samples] == [
        {"value": 0.0, "answer": "completion"},
        {"value": 1.0, "answer": "completion"},
    ]
