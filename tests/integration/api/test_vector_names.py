"""Stored vectors by name, hook and short id: in jobs, chats, routes and commands; short ids of all."""

import json
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.contract.openai import ChatCompletionRequest
from api.kinds import chat
from tests.integration.api.conftest import EMBED, Keyed, Problem, Service
from tests.integration.api.ownership.conftest import Things, things  # noqa: F401 (a fixture)
from tests.support.command_line import Run


@pytest.fixture
def ids(service: Service) -> dict[str, str]:
    """Vectors named truth at two hooks, and two different ones named twice at one."""
    service.load_model()
    made = {}
    for name, hook, value in [
        ("truth", "resid_post.1", 1.0),
        ("truth", "resid_post.2", 2.0),
        ("twice", "resid_post.1", 1.0),
        ("twice", "resid_post.1", 3.0),
        ("same", "resid_post.1", 1.0),
        ("same", "resid_post.1", 1.0),
    ]:
        body = {"name": name, "hook": hook, "vector": [value] * 8, "model": "demo"}
        answer = service.client.post("/v1/vectors", json=body)
        assert answer.status_code == 201, answer.text
        made[f"{name}@{hook}"] = answer.json()["id"]
    return made


def edits(reference: str, hook: str = "blocks.1.hook_resid_post") -> list[dict[str, Any]]:
    return [{"hook": hook, "op": "add", "vector_id": reference, "coefficient": 4}]


def test_jobs_chats_and_batches_are_stored_with_full_ids(
    service: Service, ids: dict[str, str], problem: Problem, subtests: pytest.Subtests
) -> None:
    due = ids["truth@resid_post.1"]
    rows = service.upload({"question": "1 + 1?", "answer": "#### 2"})
    bodies: list[tuple[str, dict[str, Any]]] = [
        ("/v1/jobs", {"kind": "capture", "inputs": [{"prompt": "p"}], "interventions": []}),
        ("/v1/jobs", {"kind": "evaluation", "dataset": {"file_id": rows}, "interventions": []}),
    ]

    for reference in ("truth", "truth@resid_post.1", "truth@blocks.1.hook_resid_post", due, due[:14]):
        for path, body in bodies:
            with subtests.test(reference=reference, path=path):
                sent = {"model": "demo", **body, "interventions": edits(reference)}
                answer = service.client.post(path, json=sent)
                assert answer.status_code == 202, answer.text
                (stored,) = answer.json()["spec"]["interventions"]
                assert stored["vector_id"] == due
        request: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": "hi"}]}
        chat_job = chat.resolve(
            service.services,
            ChatCompletionRequest.model_validate(request | {"interventions": edits(reference)}),
        )
        assert chat_job.interventions[0].vector_id == due
    sent = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "p"}]}
    sent["conditions"] = [{"name": "plain"}, {"name": "on", "interventions": edits("truth", "resid_post.2")}]
    spec = service.client.post("/v1/jobs", json=sent).json()["spec"]
    assert spec["conditions"][1]["interventions"][0]["vector_id"] == ids["truth@resid_post.2"]
    for reference, hook, says in [
        ("truth", "resid_post.3", "no vector truth for resid_post.3, but for resid_post."),
        ("trust", "resid_post.1", "there is no vector trust. Did you mean 'truth'?"),
        ("twice", "resid_post.1", "several vectors are named twice: vec_"),
        ("vec_", "resid_post.1", "there is no vector vec_"),
        ("vec_" + "0" * 31, "resid_post.1", "no vector has the id"),
        ("a b", "resid_post.1", "names no vector. Write its id"),
    ]:
        for place in ("interventions", "conditions"):
            with subtests.test(says, place=place):
                one = edits(reference, hook)
                change = (
                    {"interventions": one}
                    if place == "interventions"
                    else {"conditions": [{"name": "on", "interventions": one}]}
                )
                prefix = "" if place == "interventions" else "/conditions/0"
                body = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "p"}]} | change
                pointer = f"{prefix}/interventions/0/vector_id"
                problem(service.client.post("/v1/jobs", json=body), 422, pointer=pointer, says=says)
    body = {"model": "demo", "messages": [{"role": "user", "content": "hi"}], "interventions": edits("trust")}
    problem(service.client.post("/v1/chat/completions", json=body), 400, says="there is no vector trust")
    same = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "p"}], "interventions": edits("same")}
    assert service.client.post("/v1/jobs", json=same).status_code == 202, "equal vectors are one"
    named_like_an_id = {"name": "vec_1", "hook": "resid_post.1", "vector": [1.0] * 8}
    problem(service.client.post("/v1/vectors", json=named_like_an_id), 422, says="looks like an id")


def test_the_commands_name_vectors(service: Service, ids: dict[str, str], run: Run, tmp_path: Path) -> None:
    code, out, err = run("vectors", "ls", "--name", "truth")
    assert (code, "resid_post.2" in out, "twice" in out) == (0, True, False), err
    code, out, _ = run("vectors", "show", "truth@resid_post.2", "--format", "json")
    assert json.loads(out)["vector"] == [2.0] * 8
    assert run("vectors", "show", ids["truth@resid_post.1"][:14])[0] == 0
    code, _, err = run("vectors", "show", "truth")
    assert (code, "with its hook, such as truth@resid_post." in err) == (1, True)
    np.savez(tmp_path / "d.npz", **{"resid_post.1": np.arange(8.0), "resid_post.2": np.ones(8)})
    code, out, err = run("vectors", "create", "mine", tmp_path / "d.npz", "--model", "demo")
    assert (code, out.count("mine")) == (0, 2), err
    code, out, err = run("vectors", "create", "one", tmp_path / "d.npz", "--hook", "resid_post.2", "-q")
    code, out, err = run("vectors", "create", "one", tmp_path / "d.npz", "--hook", "resid_post.2")
    assert (code, out.count("one")) == (0, 1), err
    assert "no array embed" in run("vectors", "create", "one", tmp_path / "d.npz", "--hook", "embed")[2]
    for words in (("jobs", "submit"), ("eval", "--no-watch")):
        steer = ("--steer", "mine@resid_post.1*-2.5@generated")
        flags = ("--dataset", _rows(tmp_path)) if words[0] == "eval" else ("--prompt", "p")
        extra = (*(["gsm8k"] if words[0] == "eval" else []), "--model", "demo", *flags)
        more = ("--condition", "plain", "--condition", "on:steer=truth@resid_post.2*4")
        code, out, err = run(*words, *extra, *steer, *more, "--format", "json")
        assert code == 0, err
        spec = json.loads(out.splitlines()[0])["spec"]
        (edit,) = spec["interventions"]
        assert (edit["hook"], edit["coefficient"], edit["positions"]) == ("resid_post.1", -2.5, "generated")
        assert spec["conditions"][1]["interventions"][0]["vector_id"] == ids["truth@resid_post.2"]
    code, _, err = run("jobs", "submit", "--model", "demo", "--prompt", "p", "--steer", "mine*2")
    assert (code, "'mine*2' is not VECTOR@HOOK*COEFFICIENT[@POSITIONS], such as" in err) == (1, True)
    code, _, err = run("chat", "hi", "--model", "demo", "--steer", "nothing@resid_post.1*2")
    assert (code, "there is no vector nothing" in err) == (1, True), err
    code, out, err = run("vectors", "rm", "--yes", "one")
    assert (code, out.startswith("vec_")) == (0, True), err
    assert run("vectors", "ls", "--name", "one", "-q")[1] == ""


def _rows(folder: Path) -> Path:
    path = folder / "rows.jsonl"
    path.write_text(json.dumps({"question": "1 + 1?", "answer": "#### 2"}) + "\n")
    return path


def test_short_ids_are_completed_in_every_path(
    service: Service, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.load_model()
    job_id = service.submit(capture={"hooks": ["embed"]})
    (lease,) = service.claim(job_id)
    session_id = str(service.finish(lease, tensors=EMBED))
    file_id = service.upload({"text": "a"})
    for path, whole in [
        ("/v1/jobs/{}", job_id),
        ("/v1/jobs/{}/results", job_id),
        ("/v1/jobs/{}/samples", job_id),
        (f"/v1/jobs/{job_id[:12]}/samples/{{}}", lease.id),
        ("/jobs/{}", job_id),
        ("/v1/activations/sessions/{}", session_id),
        ("/v1/activations/session/{}", session_id),
        ("/v1/activations/sessions/{}/manifest", session_id),
        ("/v1/files/{}", file_id),
    ]:
        full = service.client.get(path.format(whole))
        short = service.client.get(path.format(whole[:14]))
        assert (full.status_code, short.status_code) == (200, 200), (path, short.text)
        if path.startswith("/v1"):
            assert short.json() == full.json(), path
    numbers = count(1)
    with monkeypatch.context() as patched:
        patched.setattr("storage.index.ids.secrets.token_hex", lambda _: f"{next(numbers):032x}")
        first, _ = service.upload({"text": "a"}), service.upload({"text": "b"})
    problem(service.client.get(f"/v1/files/{first[:20]}"), 422, says="is not unique")
    problem(service.client.get("/v1/jobs/job_" + "0" * 31), 404)


def test_short_ids_of_others_are_not_completed(keyed: Keyed, things: Things) -> None:  # noqa: F811
    path = f"/v1/activations/sessions/{things.ids['session_id'][:12]}"
    assert keyed.client.get(path, headers=things.bob).status_code == 404
    assert keyed.client.get(path, headers=things.alice).status_code == 200
