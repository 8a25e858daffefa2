"""`client.evaluate` and `client.capture`: the jobs that they send."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.client import ApiError, Client
from actograph.contract.errors import InvalidRequest, NotFound
from actograph.contract.interventions import Intervention
from actograph.contract.job_specs import CaptureInput
from actograph.contract.models import Model
from actograph.contract.specs import CaptureSpec, Condition


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


def test_models_arrays_and_short_forms_at_any_depth(service: Any, client: Client) -> None:
    """Whatever a spec may hold is sent as JSON: models, arrays and numbers of numpy, and texts that steer."""
    edit = Intervention(hook="resid_post.1", op="add", vector_id="truth", coefficient=2)
    same = {"hook": "resid_post.1", "op": "add", "vector_id": "truth", "coefficient": 2.0}
    short = "truth@resid_post.1*2"
    ways: list[Any] = [edit, same, short, {**same, "coefficient": np.float32(2)}]
    inputs = [{"prompt": "a", "label": np.bool_(True), "group": np.int64(3)}]
    conditions = ["plain", {"name": "on", "interventions": ways}, Condition(name="off", interventions=[edit])]
    job = client.capture(inputs, conditions=conditions, interventions=ways, capture={"layers": range(2)})
    spec = service.jobs[job.id].spec
    assert (spec["inputs"][0]["label"], spec["inputs"][0]["group"]) == (True, 3)
    assert spec["capture"]["layers"] == [0, 1]
    for edits in (spec["interventions"], spec["conditions"][1]["interventions"]):
        assert [one.items() >= same.items() for one in edits] == [True] * 4
    for chat in (client.chat, client.chat.stream):
        with pytest.raises(ApiError, match="nothing at this address"):  # the stand-in has no chats
            list(chat("Hi", interventions=ways, capture=CaptureSpec(hooks=["embed"])))
        sent = json.loads(service.seen[-1].body)
        assert [one.items() >= same.items() for one in sent["interventions"]] == [True] * 4
        assert sent["capture"] == {"hooks": ["embed"]}


def test_names_may_stand_alone(service: Any, client: Client) -> None:
    job = service.add_job(1)
    handle = client.jobs.get(job.id)
    for call in (client.analysis.outliers, client.analysis.probe, client.analysis.lens):
        service.faults.append(422)  # the stand-in runs no analyses
        with pytest.raises(ApiError):
            call({"jobs": [handle], "condition": "a"}, hooks="resid_post.1")
        sent = json.loads(service.seen[-1].body)
        assert (sent["hooks"], sent["sessions"]["jobs"]) == (["resid_post.1"], [job.id])
    service.faults.append(422)
    with pytest.raises(ApiError):
        handle.compare_texts(hooks="resid_post")
    assert service.seen[-1].query["hooks"] == "resid_post"
