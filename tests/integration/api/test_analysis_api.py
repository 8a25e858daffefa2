"""Analyses through the API: submitted, estimated, followed and read like every job."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.analysis.outliers import outliers_of_arrays
from actograph.client import AnalysisFailed, Client
from storage.upkeep import store_verify
from tests.integration.api.conftest import Keyed, Problem, Service
from tests.support.analysed import drain_of, store_sessions
from tests.support.command_line import Run
from worker.process.periodic import idle_look
from worker.signals.hints import Hints


@pytest.fixture
def rows() -> list[dict[str, Any]]:
    generator = np.random.default_rng(1)
    names = [f"resid_post.{layer}" for layer in range(3)]
    found = [{name: generator.normal(size=(6, 8)).astype(np.float32) for name in names} for _ in range(20)]
    for one in found:
        one["resid_post.1"][:, 4] = 9
    return found


def run_analyses(service: Service) -> None:
    drain_of(service.services.settings, service.database, service.services.store).look()


def test_an_analysis_is_a_job_and_its_results_are_a_session(service: Service, rows: Any) -> None:
    source = store_sessions(service.database, service.services.store, rows)
    body = {"kind": "outliers", "sessions": {"jobs": [source]}, "tags": ["night"]}
    planned = service.client.post("/v1/estimate", json=body).json()
    assert (planned["rows_to_read"], planned["bytes_to_read"]) == (20 * 6, 20 * 6 * 3 * 8 * 4)
    answer = service.client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "a"})
    assert answer.status_code == 202, answer.text
    assert service.client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "a"}).status_code == 200
    job = answer.json()
    assert "no analysis worker is alive" in job["waiting_reason"]
    assert service.woken() == ["=analysis"]
    assert service.next_job() is None, "a worker with a model leaves it alone"
    run_analyses(service)
    job = service.client.get(f"/v1/jobs/{job['id']}").json()
    assert (job["status"], job["waiting_reason"]) == ("completed", None)
    (session,) = service.client.get("/v1/activations/sessions", params={"job_id": job["id"]}).json()["data"]
    assert (session["tags"], session["hooks"], session["rows"]) == (["night"], {}, 0)
    assert {file["name"] for file in session["files"]} == {
        *("result.json", "manifest.json", "outlier_features.csv", "massive_activations.csv", "hooks.csv"),
        *("outlier_features.png", "outlier_features.svg"),
    }
    page = service.client.get(f"/jobs/{job['id']}").text
    figure = page.index(f"/figures/{session['id']}/outlier_features.svg")
    table = page.index("<h2>Hooks")
    assert figure < table < page.index("<h2>Samples"), "the page begins with the figure and the tables"
    path = f"/v1/activations/sessions/{session['id']}"
    found = json.loads(service.client.get(f"{path}/files/result.json").content)
    arrays = {hook: np.concatenate([one[hook] for one in rows]) for hook in rows[0]}
    assert found["outlier_features"] == outliers_of_arrays(arrays)["outlier_features"]
    assert service.client.get(f"{path}/manifest").status_code == 200
    verified = store_verify.verify(service.database, service.services.store, sample=1.0, seed=0)
    assert not verified.problems, verified
    assert service.client.get(f"/v1/jobs/{job['id']}/export").status_code == 422
    assert service.client.delete(f"/v1/jobs/{job['id']}").status_code == 200
    service.drain()
    assert not service.services.store.exists(f"sessions/{session['id']}")


def test_sessions_of_analyses_are_listed_apart_and_single_files_are_fetched(
    service: Service, rows: Any, url: str, run: Run, tmp_path: Path
) -> None:
    source = store_sessions(service.database, service.services.store, rows)
    with Client(url) as client:
        job = client.submit({"kind": "outliers", "sessions": {"jobs": [source]}})
        run_analyses(service)
        (analysis,) = [one.id for one in client.sessions.list(analyses=True)]
        assert [one.job_id for one in client.sessions.list(analyses=False)] == [source] * len(rows)
        assert len(list(client.sessions.list())) == len(rows) + 1

    def listed(*flags: str) -> list[str]:
        return run("sessions", "ls", "--quiet", *flags)[1].split()

    assert analysis not in listed() and len(listed()) == len(rows)
    assert listed("--analyses") == listed("--job", job.id) == [analysis]
    fetch = ("sessions", "download", analysis, "--out", tmp_path / "out", "--files")
    code, _, err = run(*fetch, "*.pt")
    assert code != 0 and "has no file '*.pt'; it has " in err
    assert not (tmp_path / "out").exists()
    assert run(*fetch, "*.png")[0] == 0
    assert [one.name for one in (tmp_path / "out" / analysis).iterdir()] == ["outlier_features.png"]


def sessions_of(kind: str) -> list[dict[str, Any]]:
    """Sessions of several lengths, also with hooks that an `outliers` job leaves out."""
    generator, found = np.random.default_rng(4), []
    for tokens in (9, 3, 14, 5):
        shapes = dict.fromkeys(["embed", "attn_in.0", "mlp_in.0", "attn_in.1", "mlp_in.1", "final_norm"], 8)
        shapes |= {"router_logits.1": 6, "expert_weights.1": 2} if kind == "moe" else {}
        rows: dict[str, Any] = {
            name: generator.normal(size=(tokens, width)).astype(np.float32) for name, width in shapes.items()
        }
        rows["attn_in.1"][:, 4], rows["mlp_in.0"][tokens - 1, 2] = 9, -700
        if kind == "moe":
            rows["expert_indices.1"] = np.argsort(-rows["router_logits.1"], axis=1)[:, :2].astype(np.int32)
        found.append(rows)
    return found


@pytest.fixture(params=["dense", "moe"])
def recorded(request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    return sessions_of(request.param)


def test_a_file_of_a_jobs_rows_gives_the_numbers_of_the_job(
    service: Service, url: str, run: Run, tmp_path: Path, recorded: list[dict[str, Any]]
) -> None:
    source = store_sessions(service.database, service.services.store, recorded)
    flags = ["--massive-ratio", "100", "--layer-share", "0.5"]
    with Client(url) as client:
        body = {"kind": "outliers", "sessions": {"jobs": [source]}, "massive_ratio": 100, "layer_share": 0.5}
        job = client.submit(body)
        run_analyses(service)
        due = client.analysis.follow(job.id, progress=False).result
        names = {"attn_in.0": "layer_0_ln_attn", "mlp_in.0": "layer_0_ln_mlp"}
        names |= {"attn_in.1": "layer_1_ln_attn", "mlp_in.1": "layer_1_ln_mlp"}
        massive = [
            {name: value for name, value in one.items() if name != "hook"} | {"array": names[one["hook"]]}
            for one in due.massive_activations
        ]
        assert {one["feature"] for one in due.outlier_features} == {2, 4}
        assert len(massive) == 4
        for suffix, sequence in itertools.product(("npz", "safetensors"), (None, 16, 4)):
            path = client.jobs.get(source).write_arrays(tmp_path / f"t.{suffix}", sequence=sequence)
            code, out, err = run("analyse", "outliers", path, *flags)
            assert code == 0, err
            found = json.loads(out)
            assert found["outlier_features"] == due.outlier_features
            assert found["massive_activations"] == massive
            assert set(found["left_out"]) == {"embed", "final_norm"} | (
                {"expert_weights.1"} & set(recorded[0])
            )
            assert {names[hook] for hook in due.hooks} == set(found["arrays"])
            for hook, numbers in due.hooks.items():
                assert found["arrays"][names[hook]] == pytest.approx(numbers, rel=1e-9)
            assert list(found["experts"]) == list(due.experts)
            for layer, use in due.experts.items():
                entropy = found["experts"][layer].pop("router_entropy")
                assert entropy == pytest.approx(use["router_entropy"])
                assert found["experts"][layer] == {k: v for k, v in use.items() if k != "router_entropy"}


def test_analyses_that_cannot_run_are_refused(
    service: Service, problem: Problem, rows: Any, subtests: pytest.Subtests
) -> None:
    source = store_sessions(service.database, service.services.store, rows[:2])
    names = {"resid_post.0": "attn_out.1", "resid_post.1": "mlp_out.1", "resid_post.2": "resid_post.2"}
    raw = [{names[name]: array for name, array in one.items()} for one in rows[:2]]
    outputs = store_sessions(service.database, service.services.store, raw)
    empty = service.submit()
    two = store_sessions(service.database, service.services.store, rows[:2], conditions=("off", "on"))
    unknown = f"job_{0:032x}"
    for changes, pointer, says in [
        ({"sessions": {"jobs": [source, unknown]}}, "/sessions/jobs/1", "there is no job"),
        ({"sessions": {"jobs": [empty]}}, "/sessions", "the jobs have stored no activations"),
        ({"sessions": {"jobs": [source], "condition": "on"}}, "/sessions", "the jobs have no conditions"),
        ({"sessions": {"jobs": [two], "condition": "of"}}, "/sessions", "no condition of; there are off, on"),
        ({"sessions": {"jobs": [source], "tag": "x"}}, "/sessions", "none of 2 sessions has tag x"),
        ({"kind": "compare", "other": {"jobs": [source]}}, "/other", "both sides are the same 2 sessions"),
        ({"sessions": {"jobs": []}}, "/sessions/jobs", "neither is given"),
        ({"sessions": {"jobs": [source], "ids": ["ses_1"]}}, "/sessions/jobs", "both are given"),
        ({"sessions": {"ids": ["ses_" + "0" * 32]}}, "/sessions/ids/0", "there is no session"),
        ({"hooks": ["resid_pst"]}, "/hooks/0", "Did you mean 'resid_post'?"),
        ({"threshold": 0}, "/threshold", ""),
        ({"model": "demo"}, "/model", "unknown field"),
        ({"kind": "lens", "sessions": {"jobs": [outputs]}, "token": 3}, "/token", "capture resid_pre.0"),
    ]:
        with subtests.test(pointer=pointer):
            body = {"kind": "outliers", "sessions": {"jobs": [source]}, **changes}
            for route in ("/v1/jobs", "/v1/estimate"):
                problem(service.client.post(route, json=body), 422, pointer=pointer, says=says)


def test_sessions_of_others_are_not_analysed(keyed: Keyed, problem: Problem, rows: Any) -> None:
    source = store_sessions(keyed.database, keyed.services.store, rows[:2])  # nobody's
    key = keyed.make_key("submit", owner="alice")
    body = {"kind": "outliers", "sessions": {"jobs": [source]}}
    answer = keyed.client.post("/v1/jobs", json=body, headers=keyed.headers(key))
    problem(answer, 422, pointer="/sessions/jobs/0", says="there is no job")
    assert keyed.client.post("/v1/jobs", json=body, headers=keyed.headers()).status_code == 202


def test_the_client_reads_results_as_types_frames_and_directions(
    service: Service, url: str, rows: Any
) -> None:
    correct = [number % 3 == 0 for number in range(20)]
    source = store_sessions(service.database, service.services.store, rows, correct=correct)
    with Client(url) as client:
        sent = {"kind": "probe", "sessions": {"jobs": [source]}, "positions": "last", "folds": 3}
        job = client.submit(sent | {"resamples": 10, "save_as": "right"})
        with pytest.raises(AnalysisFailed, match="queued, without results"):
            client.analysis.result(job.id)
        run_analyses(service)
        finished = client.analysis.follow(job.id, progress=False)
        assert finished.result.sessions == 20
        assert list(finished.frame()["hook"]) == list(rows[0])
        assert finished.file("probes.png").startswith(b"\x89PNG")
        directions = finished.directions()
        (vector,) = (one for one in client.vectors.list(name="right") if one.hook == "resid_post.1")
        assert np.allclose(client.vectors.get(vector.id).vector, directions["resid_post.1"])


def test_the_commands_follow_and_print_tables(service: Service, run: Run, rows: Any) -> None:
    correct = [number % 2 == 0 for number in range(20)]
    source = store_sessions(service.database, service.services.store, rows, correct=correct)
    drain = drain_of(service.services.settings, service.database, service.services.store)
    worker = idle_look(drain.look, Hints(), seconds=0.05)
    worker.start()
    try:
        code, out, err = run("analyse", "outliers", source[:20], "--hooks", "resid_post")
        assert (code, "POSITION SHARE" in out) == (0, True), (out, err)
        assert "actograph sessions download" in err
        code, out, _ = run(
            "analyse", "probe", source, "--positions", "last", "--folds", 3, "--format", "json"
        )
        assert code == 0
        assert set(json.loads(out)["hooks"]) == set(rows[0])
        sides = ("--label", "correct", "--unpaired", "--groups", "sample")
        code, out, _ = run(
            "analyse", "compare", source, "--hooks", "resid_post.1", "--positions", "last", *sides
        )
        assert (code, "PAIRS" in out) == (0, True), out
        code, out, err = run("analyse", "outliers", source, "--positions", "generated")
        assert (code, out) == (1, "")
        assert "no row at positions generated" in err.splitlines()[-1]
    finally:
        worker.stop()
    code, _, err = run("analyse", "compare", source, "--hooks", "embed")
    assert (code, "no tensor embed is stored" in err) == (1, True)
