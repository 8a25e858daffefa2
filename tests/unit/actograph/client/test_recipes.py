"""`client.evaluate` and `client.capture`: the jobs that they send."""

from pathlib import Path
from typing import Any

import pytest

from actograph.client import Client
from actograph.contract.errors import InvalidRequest, NotFound
from actograph.contract.job_specs import CaptureInput
from actograph.contract.models import Model
from actograph.contract.specs import CaptureSpec


@pytest.fixture(autouse=True)
def model(service: Any) -> None:
    service.models = [Model(id="demo", created=1)]


def test_an_evaluation_of_a_file(service: Any, client: Client, tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text("{}\n")
    job = client.evaluate(
        "gsm8k",
        dataset=path,
        capture="resid_post@all",
        positions="generated",
        conditions={"EP02": "It matters."},
        temperature=0.5,
        expires_after="7d",
    )
    (file_id,) = service.uploads
    spec = service.jobs[job.id].spec
    assert (spec["model"], spec["dataset"]["file_id"]) == ("demo", file_id)
    assert (spec["capture"]["points"], spec["capture"]["layers"]) == (["resid_post"], "all")
    assert (spec["capture"]["positions"], spec["sampling"]["temperature"]) == ("generated", 0.5)
    assert [(one["name"], one["suffix"]) for one in spec["conditions"]] == [
        ("baseline", ""),
        ("EP02", "It matters."),
    ]
    assert spec["expires_after"]["seconds"] == 7 * 86400


def test_prompts_and_conversations(service: Any, client: Client) -> None:
    talk = [{"role": "user", "content": "Why?"}]
    labelled = {"prompt": "Two", "label": True, "group": "a"}
    inputs = ["One", talk, labelled, CaptureInput.model_validate(labelled)]
    job = client.capture(inputs, capture=CaptureSpec(hooks=["embed"]), max_tokens=3)
    spec = service.jobs[job.id].spec
    assert [one["prompt"] for one in spec["inputs"]] == ["One", None, "Two", "Two"]
    assert [one["label"] for one in spec["inputs"]] == [None, None, True, True]
    assert spec["inputs"][1]["messages"] == talk
    assert (spec["capture"]["hooks"], spec["sampling"]["max_tokens"]) == (["embed"], 3)
    job = client.capture(dataset="path:texts.jsonl", text_field="body", mode="prefill")
    spec = service.jobs[job.id].spec
    assert (spec["dataset"]["path"], spec["text_field"], spec["capture"]["mode"]) == (
        "texts.jsonl",
        "body",
        "prefill",
    )


def test_mistakes_are_found_before_anything_is_sent(service: Any, client: Client) -> None:
    for options, reason in [
        ({"dataset": "none.jsonl"}, "dataset: no file"),
        ({"temperature": -1}, r"sampling\.temperature"),
        ({"capture": "@all"}, "points@layers"),
        ({"sampling": {"colour": "red"}}, r"sampling\.colour: unknown field"),
    ]:
        with pytest.raises(InvalidRequest, match=reason):
            client.evaluate(model="demo", **options)  # type: ignore[arg-type]
    assert service.paths("POST") == []


def test_first_and_one(service: Any, client: Client) -> None:
    assert client.sessions.list().first() is None
    with pytest.raises(NotFound):
        client.sessions.list().one()
    one = service.add_session(1)
    assert client.sessions.list().one().id == one.id
    two = service.add_session(2)
    assert client.jobs.get(service.add_job(1).id).sessions().first() == client.sessions.get(two.id)
    with pytest.raises(InvalidRequest, match="several"):
        client.sessions.list().one()
