"""Labels and groups of one's own: of inputs, rows and scores, in probes, matrices and comparisons."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.client import ApiError, Client
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import Problem, Service
from tests.support.analysed import drain_of
from tests.support.command_line import Run
from worker.process.periodic import idle_look
from worker.signals.hints import Hints

HOOK = "resid_post.1"
COUNT = 60


def rows_of(number: int) -> Any:
    """Rows [6, 8] that know the label of a statement, a number of it, and its pair."""
    generator = np.random.default_rng(number)
    rows = generator.normal(size=(6, 8)).astype("<f4")
    rows[:, 2] += 3 * (number % 2)
    rows[:, 4] += number // 2
    return rows


def finish(service: Service, job_id: str, *, unjudged: bool = False) -> None:
    for lease in service.claim(job_id, COUNT):
        number = lease.sample_index
        rows = TensorRows(HOOK, "F32", (6, 8), 0, rows_of(number))
        service.finish(lease, tensors={HOOK: rows}, correct=None if unjudged else number % 2 == 1)


@pytest.fixture(params=["inputs", "jsonl", "csv"])
def statements(request: pytest.FixtureRequest, service: Service) -> str:
    """A finished capture of 60 statements: two of each pair with the opposite label, and a number."""
    service.load_model()
    about = [
        {"label": n % 2 == 1, "group": f"pair {n // 2}", "weight": n // 2 + 0.5, "name": "ab"[n % 2]}
        for n in range(COUNT)
    ]
    if request.param == "inputs":
        fields = ("label", "group")
        inputs = [
            {"prompt": f"statement {n}", "tags": [f"n{n}"]} | {name: one[name] for name in fields}
            for n, one in enumerate(about)
        ]
        job_id = service.submit(inputs=inputs)
    else:
        lines = [{"text": f"statement {n}"} | one for n, one in enumerate(about)]
        if request.param == "jsonl":
            content = "".join(json.dumps(line) + "\n" for line in lines).encode()
        else:
            head = ",".join(lines[0])
            content = "\n".join([head, *(",".join(map(str, one.values())) for one in lines)]).encode()
        file_id = service.upload_bytes(f"rows.{request.param}", content)
        job_id = service.submit(inputs=None, dataset={"file_id": file_id})
    finish(service, job_id)
    return job_id


def test_values_of_inputs_and_rows_are_labels_and_groups_everywhere(
    service: Service, url: str, statements: str, request: pytest.FixtureRequest
) -> None:
    form = request.node.callspec.params["statements"]
    drain = drain_of(service.services.settings, service.database, service.services.store)
    worker = idle_look(drain.look, Hints(), seconds=0.05)
    worker.start()
    try:
        with Client(url, "") as client:
            job = client.jobs.get(statements)
            options: dict[str, Any] = {"hooks": [HOOK], "positions": "last", "resamples": 20, "shuffles": 1}
            for label, groups in (("label", "group"), ("column:label", "column:group")):
                found = client.analysis.probe(job, label=label, groups=groups, c=1.0, **options)
                numbers = found.result.hooks[HOOK]
                assert (numbers["rows"], numbers["groups"]) == (COUNT, COUNT // 2)
                assert numbers["auroc"] > 0.9
                assert numbers["classes"] == (["False", "True"] if form == "csv" else [0.0, 1.0])
            matrix = job.matrix(HOOK, positions="last", label="label", groups="group")
            assert matrix.groups.tolist() == [f"pair {n // 2}" for n in matrix.sample_index]
            truth = [str(n % 2 == 1) for n in matrix.sample_index]
            assert matrix.labels.tolist() == (truth if form == "csv" else [one == "True" for one in truth])
            sides = [{"jobs": [job.id], "correct": one} for one in (False, True)]
            with pytest.raises(ApiError, match="0 problems are common"):
                client.analysis.compare(*sides, hooks=[HOOK])
            compared = client.analysis.compare(*sides, hooks=[HOOK], groups="group", positions="last")
            assert compared.result.hooks[HOOK]["pairs"] == COUNT // 2
            assert compared.directions()[HOOK][2] == pytest.approx(3, abs=0.8)
            means = [
                np.stack([rows_of(n)[5] for n in range(one, COUNT, 2)]).mean(axis=0, dtype=np.float64)
                for one in (0, 1)
            ]
            apart = client.analysis.compare(
                job, label="label", paired=False, hooks=[HOOK], positions="last", save_as=f"truth-{form}"
            )
            assert (apart.result.first, apart.result.second) == (numbers["classes"][0], numbers["classes"][1])
            assert np.allclose(apart.directions()[HOOK], means[1] - means[0], atol=1e-6)
            (saved,) = client.vectors.list(name=f"truth-{form}")
            assert np.allclose(client.vectors.get(saved.id).vector, means[1] - means[0], atol=1e-5)
            pairs = client.analysis.compare(
                job, label="label", groups="group", hooks=[HOOK], positions="last"
            )
            assert pairs.result.hooks[HOOK]["pairs"] == COUNT // 2
            assert np.allclose(pairs.directions()[HOOK], means[1] - means[0], atol=1e-6)
            if form == "inputs":
                assert next(iter(job.samples())).input["tags"] == ["n0"]
                return
            named = job.matrix(HOOK, positions="last", label="column:name")
            assert named.labels.tolist() == ["ab"[n % 2] for n in named.sample_index]
            assert job.matrix(HOOK, label="column:weight").labels.max() == 29.5, "texts of CSV are numbers"
            found = client.analysis.probe(
                job, label="column:weight", groups="group", method="ridge", **options
            )
            numbers = found.result.hooks[HOOK]
            assert numbers["r2"] > 0.5
            assert numbers["spearman"] > 0.7
            assert found.frame()[["hook", "r2", "spearman", "r2_length"]].shape == (1, 4)
            assert found.file("probes.png").startswith(b"\x89PNG")
    finally:
        worker.stop()


def test_labels_that_allow_no_probe_are_refused_at_submission(
    service: Service, problem: Problem, subtests: pytest.Subtests
) -> None:
    service.load_model()
    inputs = [{"prompt": "p", "label": n / 4, "group": "ab"[n % 2], "tags": []} for n in range(COUNT - 1)]
    job_id = service.submit(inputs=[*inputs, {"prompt": "p", "group": "b"}])
    finish(service, job_id, unjudged=True)
    listed = service.client.get("/v1/activations/sessions", params={"job_id": job_id, "order": "asc"})
    scored = {"session_id": listed.json()["data"][0]["id"], "scores": {"clarity": 4}}
    assert service.client.post("/v1/activations/sessions/scores", json={"sessions": [scored]}).is_success
    for changes, field, says in [
        ({"label": "column:lable"}, "label", "no column 'lable'. Did you mean 'label'?"),
        (
            {"label": "correct"},
            "label",
            "'correct'. Choose another label: label, group, column:prompt, clarity",
        ),
        ({"label": "clearness"}, "label", "Known: clarity, column:prompt, condition, correct, group, label"),
        ({"label": "clarity"}, "label", "two different values; found 1: 4.0"),
        ({"label": "column:prompt"}, "label", "two different values; found 1: p"),
        ({"label": "label"}, "label", "or use ridge, which predicts numbers; found 59: 0.0, 0.25"),
        ({"label": "label", "method": "ridge", "groups": "group"}, "folds", "choose 2 to 2 folds"),
        ({"label": "label", "method": "ridge", "groups": "column:pair"}, "groups", "no column 'pair'"),
        ({"label": "group", "folds": 40}, "folds", "40 folds, and a class with 30 groups"),
        ({"groups": "problem"}, "groups", "Write sample, group, or column:NAME"),
        ({"kind": "compare", "other": {"jobs": [job_id]}, "groups": "column:pair"}, "groups", "no column"),
        (
            {"kind": "compare", "other": {"jobs": [job_id], "sample_index": 1}, "groups": "group"},
            "groups",
            "1 problems are common",
        ),
        ({"kind": "compare"}, "", "give exactly one of other and label"),
        ({"kind": "compare", "other": {"jobs": [job_id]}, "label": "label"}, "", "give exactly one of"),
        ({"kind": "compare", "label": "label"}, "label", "two different values; found 59"),
        ({"kind": "compare", "label": "group"}, "groups", "0 problems are common to both sides"),
    ]:
        with subtests.test(says):
            body = {"kind": "probe", "sessions": {"jobs": [job_id]}, "hooks": [HOOK], **changes}
            for route in ("/v1/jobs", "/v1/estimate"):
                answer = service.client.post(route, json=body)
                problem(answer, 422, pointer=f"/{field}" if field else None, says=says)
    for params, says in [
        ({"label": "column:lable"}, "no column 'lable'"),
        ({"groups": "column:pair"}, "no column 'pair'"),
        ({"groups": "problem"}, "Write sample, group, or column:NAME"),
    ]:
        for path in (f"/v1/jobs/{job_id}/matrix", "/v1/activations/matrix"):
            problem(service.client.get(path, params={"hook": HOOK} | params), 422, says=says)
    for wrong in ([1], {"a": 1}, "", "x" * 257, 1 << 63):
        answer = service.client.post(
            "/v1/jobs", json={"kind": "capture", "model": "demo", "inputs": [{"prompt": "p", "label": wrong}]}
        )
        problem(answer, 422, pointer="/inputs/0/label")


def test_scores_of_a_file_are_labels(service: Service, run: Run, url: str, tmp_path: Path) -> None:
    service.load_model()
    job_id = service.submit(inputs=[{"prompt": "p"}] * COUNT)
    finish(service, job_id, unjudged=True)
    path = tmp_path / "labels.csv"

    def write(*lines: str) -> Path:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")
        return path

    write("sample_index,clarity,correct", *(f"{n},{n / 2},{'true' if n % 2 else 'no'}" for n in range(2)))
    code, _, err = run("sessions", "score", path, "--job", job_id)
    assert (code, "line 2: correct is 'no'; write true or false" in err) == (1, True), err
    write("sample_index,clarity,correct", *(f"{n},{n / 2},{bool(n % 2)}" for n in range(COUNT)))
    code, out, err = run("sessions", "score", path, "--job", job_id[:12], "--format", "json")
    assert (code, json.loads(out)) == (0, {"sessions": COUNT}), err
    with Client(url, "") as client:
        matrix = client.jobs.get(job_id).matrix(HOOK, label="clarity")
        assert matrix.labels.tolist() == [n / 2 for n in matrix.sample_index]
        ids = [one.id for one in client.sessions.list(job_id=job_id, correct=True)]
        assert len(ids) == COUNT // 2
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["session_id", "tone"], *((one, 1) for one in ids)])
    assert run("sessions", "score", path)[0] == 0
    for lines, says in [
        (["tone", "1"], "no column session_id"),
        (["session_id", ids[0]], "no column of scores"),
        (["session_id,tone", f"{ids[0]},high"], "line 2: tone is 'high'; scores are numbers"),
        (["session_id,tone", f"{ids[0]},nan"], "scores are numbers"),
        (["session_id,tone", ids[0]], "has not the 2 values"),
        (["session_id,tone", "ses_none,1"], "no session ses_none"),
        (["session_id,tone", f"{ids[0]},1", f"{ids[0]},2"], f"line 3 is about session {ids[0]}"),
    ]:
        code, _, err = run("sessions", "score", write(*lines))
        assert (code, says in err) == (1, True), err
    code, _, err = run("sessions", "score", write("sample_index,tone", "99,1"), "--job", job_id)
    assert (code, "line 2: the job has no session with sample_index 99" in err) == (1, True)


def test_conditions_that_do_not_suit_the_inputs_are_refused(
    service: Service, problem: Problem, subtests: pytest.Subtests
) -> None:
    service.load_model()
    talk = {"messages": [{"role": "user", "content": "hi"}]}
    said = {"messages": [{"role": "assistant", "content": "hi"}]}
    file_id = service.upload({"text": "a"})
    for inputs, condition, pointer, says in [
        ([talk, {"prompt": "p"}], {"system": "s"}, "/conditions/1/system", "inputs.1 is plain text"),
        (None, {"system": "s"}, "/conditions/1/system", "the dataset's texts are plain text"),
        ([talk, said], {"suffix": "s"}, "/inputs/1/messages", "no message of the user"),
        ([talk], {"tools": "calculator"}, "/conditions/1/tools", "unknown field"),
    ]:
        with subtests.test(says):
            body: dict[str, Any] = {"kind": "capture", "model": "demo", "inputs": inputs}
            body["conditions"] = [{"name": "plain"}, {"name": "other"} | condition]
            body |= {"dataset": {"file_id": file_id}} if inputs is None else {}
            problem(service.client.post("/v1/jobs", json=body), 422, pointer=pointer, says=says)
    good = {
        "kind": "capture",
        "model": "demo",
        "inputs": [talk],
        "conditions": [{"name": "a", "system": "s"}],
    }
    assert service.client.post("/v1/jobs", json=good).status_code == 202
