"""`client.evaluate`, `client.capture` and their like: the jobs that they make."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.client import ApiError, Client
from actograph.contract.errors import CaptureFailed, InvalidRequest, NotFound
from actograph.contract.interventions import Intervention
from actograph.contract.job_specs import CaptureInput
from actograph.contract.resources import Score
from actograph.contract.specs import CaptureSpec, Condition
from actograph.settings import Settings
from tests.integration.api.client.conftest import STRICT, Wire, graded, problem
from tests.integration.api.conftest import EMBED, Service
from tests.support import leasing

PROBLEM = '{"question": "1+1?", "answer": "#### 2"}\n'


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """One model, so that none need be named."""
    return settings.model_copy(update={"allowed_models": ()})


@pytest.fixture(autouse=True)
def model(service: Service) -> None:
    service.load_model()


def test_an_evaluation_of_a_file(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text(PROBLEM)
    job = client.evaluate(
        "gsm8k",
        dataset=path,
        capture="resid_post@all",
        positions="generated",
        conditions={"EP02": "It matters."},
        temperature=0.5,
        expires_after="7d",
    )
    spec = client.jobs.get(job.id).spec
    (file,) = client.files.list()
    assert (spec["model"], spec["dataset"]["file_id"]) == ("demo", file.id)
    assert spec["capture"]["points"] == ["resid_post"] and spec["capture"]["layers"] in ("all", [0, 1, 2, 3])
    assert (spec["capture"]["positions"], spec["sampling"]["temperature"]) == ("generated", 0.5)
    assert [(one["name"], one["suffix"]) for one in spec["conditions"]] == [
        ("baseline", ""),
        ("EP02", "It matters."),
    ]
    assert spec["expires_after"]["seconds"] == 7 * 86400


def test_prompts_and_conversations(client: Client, service: Service) -> None:
    talk = [{"role": "user", "content": "Why?"}]
    labelled = {"prompt": "Two", "label": True, "group": "a"}
    inputs = ["One", talk, labelled, CaptureInput.model_validate(labelled)]
    job = client.capture(inputs, capture=CaptureSpec(hooks=["embed"]), max_tokens=3)
    found = [sample.input for sample in client.jobs.get(job.id).samples()]
    assert [one.get("prompt") for one in found] == ["One", None, "Two", "Two"]
    assert [one.get("label") for one in found] == [None, None, True, True]
    assert found[1]["messages"] == talk
    spec = client.jobs.get(job.id).spec
    assert (spec["capture"]["hooks"], spec["sampling"]["max_tokens"]) == (["embed"], 3)
    (Path(service.services.settings.data_roots[0]) / "texts.jsonl").write_text('{"body": "a text"}\n')
    spec = client.capture(dataset="path:texts.jsonl", text_field="body", mode="prefill").spec
    path = Path(spec["dataset"]["path"]).name
    assert (path, spec["text_field"], spec["capture"]["mode"]) == (
        "texts.jsonl",
        "body",
        "prefill",
    )


def test_mistakes_are_found_before_anything_is_sent(wire: Wire, client: Client) -> None:
    for options, reason in [
        ({"dataset": "none.jsonl"}, "dataset: no file"),
        ({"temperature": -1}, r"sampling\.temperature"),
        ({"capture": "@all"}, "points@layers"),
        ({"sampling": {"colour": "red"}}, r"sampling\.colour: unknown field"),
    ]:
        with pytest.raises(InvalidRequest, match=reason):
            client.evaluate(model="demo", **options)  # type: ignore[arg-type]
    assert wire.paths("POST") == []


def test_first_and_one(service: Service, client: Client) -> None:
    assert client.sessions.list().first() is None
    with pytest.raises(NotFound):
        client.sessions.list().one()
    job_id, (one,) = graded(service, "y")
    assert client.sessions.list().one().id == one
    _, (two,) = graded(service, "y")
    assert client.sessions.list().first() == client.sessions.get(two)
    assert client.jobs.get(job_id).sessions().first() == client.sessions.get(one)
    with pytest.raises(InvalidRequest, match="several"):
        client.sessions.list().one()


def test_models_arrays_and_short_forms_at_any_depth(wire: Wire, client: Client) -> None:
    """Whatever a spec may hold is sent as JSON: models, arrays and numbers of numpy, and texts that steer."""
    vector = client.vectors.create("truth", "resid_post.1", [1.0] * 8).id
    edit = Intervention(hook="resid_post.1", op="add", vector_id="truth", coefficient=2)
    same = {"hook": "resid_post.1", "op": "add", "vector_id": vector, "coefficient": 2.0}
    named = same | {"vector_id": "truth"}
    ways: list[Any] = [edit, named, "truth@resid_post.1*2", {**named, "coefficient": np.float32(2)}]
    inputs = [{"prompt": "a", "label": np.bool_(True), "group": np.int64(3)}]
    conditions = ["plain", {"name": "on", "interventions": ways}, Condition(name="off", interventions=[edit])]
    job = client.capture(inputs, conditions=conditions, interventions=ways, capture={"layers": range(2)})
    found = client.jobs.get(job.id)
    assert {(one.input["label"], one.input["group"]) for one in found.samples()} == {(True, 3)}
    assert found.spec["capture"]["layers"] == [0, 1]
    for edits in (found.spec["interventions"], found.spec["conditions"][1]["interventions"]):
        assert [one.items() >= same.items() for one in edits] == [True] * 4
    for chat in (client.chat, client.chat.stream):
        wire.faults = [problem(422, "invalid_request", "enough seen")]
        with pytest.raises(ApiError, match="enough seen"):
            list(chat("Hi", model="demo", interventions=ways, capture=CaptureSpec(hooks=["embed"])))
        sent = json.loads(wire.seen[-1].body)
        assert [one.items() >= named.items() for one in sent["interventions"]] == [True] * 4
        assert sent["capture"] == {"hooks": ["embed"]}


def test_names_may_stand_alone(service: Service, wire: Wire, client: Client) -> None:
    handle = client.jobs.get(graded(service)[0])
    for call in (client.analysis.outliers, client.analysis.probe, client.analysis.lens):
        wire.faults = [problem(422, "invalid_request")]
        with pytest.raises(ApiError):
            call({"jobs": [handle], "condition": "a"}, hooks="resid_post.1")
        sent = json.loads(wire.seen[-1].body)
        assert (sent["hooks"], sent["sessions"]["jobs"]) == (["resid_post.1"], [handle.id])
    wire.faults = [problem(422, "invalid_request")]
    with pytest.raises(ApiError):
        handle.compare_texts(hooks="resid_post")
    assert wire.seen[-1].query["hooks"] == "resid_post"


def test_samples_as_a_frame(service: Service, client: Client) -> None:
    job_id = service.submit(inputs=[{"prompt": str(n)} for n in range(2)])
    first, second = service.claim(job_id, 2)
    with service.database.write() as session:
        leasing.fail(session, first, CaptureFailed("it broke"))
    service.finish(second, tensors=EMBED, scores={STRICT: Score(value=1.0)})
    frame = client.jobs.get(job_id).frame()
    assert frame["sample_index"].tolist() == [0, 1]
    assert frame["status"].tolist() == ["failed", "completed"]
    assert "it broke" in frame["error"].tolist()[0]
    assert frame[STRICT].isna().tolist() == [True, False]
