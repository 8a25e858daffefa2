"""The commands against the real application: what they send, print and exit with."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from actograph.contract.errors import CaptureFailed
from actograph.contract.resources import Score
from actograph.settings import Settings
from storage.jobs import jobs
from storage.queue import model_loads, workers
from storage.tables.models import JobRow
from tests.integration.api.client.conftest import STRICT, Wire, graded
from tests.integration.api.conftest import EMBED, ROOT_KEY, Keyed, Service, capture_spec, structure
from tests.support import leasing
from tests.support.command_line import Run, runner

ROW = '{"question": "1+1?", "answer": "#### 2"}\n'
FLEXIBLE = "exact_match,flexible-extract"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """One model, so that none need be named."""
    return settings.model_copy(update={"allowed_models": ()})


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def evaluated(service: Service, verdicts: str = "ynnn", *, truncated: int = 0, **changes: Any) -> str:
    """An evaluation whose first samples have these verdicts; it has ended if all have one."""
    service.load_model()
    file_id = service.upload(*({"question": f"q{i}", "answer": "#### 5"} for i in range(4)))
    spec = {"kind": "evaluation", "model": "demo", "dataset": {"file_id": file_id}} | changes
    answer = service.client.post("/v1/jobs", json=spec)
    assert answer.status_code == 202, answer.text
    job_id = str(answer.json()["id"])
    for place, lease in enumerate(service.claim(job_id, len(verdicts))):
        right = Score(value=float(verdicts[place] == "y"), answer="5")
        reason = "length" if place < truncated else "stop"
        service.finish(lease, scores={STRICT: right, FLEXIBLE: right}, finish_reason=reason)
    return job_id


def test_jobs_ls_is_a_table(service: Service, run: Run) -> None:
    running = evaluated(service, "yn")
    service.submit(tags=["night", "a"])
    service.submit()
    code, out, err = run("jobs", "ls")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].startswith("JOB ID")
    assert ["queued #1" in line for line in lines[1:]] == [False, True, False]
    assert "queued #2" in lines[1]
    assert lines[2].endswith("night, a")
    assert running[:16] in lines[3] and "in_progress 2/4" in lines[3]


def test_jobs_show(service: Service, run: Run) -> None:
    job_id = evaluated(service)
    code, out, _ = run("jobs", "show", job_id[:20])
    assert code == 0
    shown = [line.split(maxsplit=1) for line in out.splitlines()]
    assert ["id:", job_id] in shown and any(line[:1] == ["status:"] for line in shown)
    rows = [line.split() for line in out.splitlines() if line.startswith("gsm8k")]
    assert rows[:2] == [
        ["gsm8k", "baseline", name, "0", "exact_match", "0.2500", "0.2500", "4", "0"]
        for name in ("strict-match", "flexible-extract")
    ]
    assert json.loads(run("jobs", "show", job_id, "--format", "json")[1])["id"] == job_id


def test_submit_from_flags_uploads_the_dataset(service: Service, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(ROW)
    code, out, _ = run("jobs", "submit", "--dataset", path, "--no-chat-template", "--tag", "a", "--tag", "b")
    job = service.client.get(f"/v1/jobs/{out.strip()}").json()
    spec = job["spec"]
    (file,) = service.client.get("/v1/files").json()["data"]
    assert (code, spec["dataset"]["file_id"], file["purpose"]) == (0, file["id"], "dataset")
    assert service.client.get(f"/v1/files/{file['id']}/content").text == ROW
    assert (spec["kind"], spec["model"], spec["task"]) == ("evaluation", "demo", "gsm8k")
    assert (spec["apply_chat_template"], job["tags"]) == (False, ["a", "b"])


@pytest.mark.parametrize(("end", "expected"), [("completed", 0), ("failed", 1), ("cancelled", 2)])
def test_watch_ends_with_the_jobs_end(service: Service, run: Run, end: str, expected: int) -> None:
    job_id = evaluated(
        service, "yynn" if end == "completed" else "y", truncated=1, max_consecutive_failures=1
    )
    if end == "failed":
        (lease,) = service.claim(job_id)
        with service.database.write() as session:
            leasing.fail(session, lease, CaptureFailed("it broke"))
    elif end == "cancelled":
        service.client.post(f"/v1/jobs/{job_id}/cancel")
    code, out, err = run("jobs", "watch", job_id[:20])
    assert code == expected
    assert out.split("\n")[0].split() == [
        *("Tasks", "Condition", "Filter", "n-shot", "Metric", "Value", "Stderr", "Samples", "Failed")
    ]
    assert re.search(rf"^{end} \d/4", err, re.MULTILINE)
    assert err.splitlines()[-1].startswith(f"job {job_id} {end}")
    assert re.search(r"1 of [14] samples ended at max_tokens", err)


def test_cancel_and_rm_go_on_after_a_failure(service: Service, run: Run) -> None:
    ended, running = evaluated(service), service.submit()
    code, out, err = run("jobs", "cancel", ended, running)
    assert (code, out) == (1, running + "\n")
    assert "completed" in err
    assert run("jobs", "rm", "--yes", ended)[:2] == (0, ended + "\n")
    assert [one["id"] for one in service.client.get("/v1/jobs").json()["data"]] == [running]


def test_sessions_ls_show_and_rm(service: Service, wire: Wire, run: Run) -> None:
    job_id, made = graded(service, "yny")
    _, out, _ = run("sessions", "ls")
    assert out.splitlines()[0].startswith("SESSION ID")
    assert [line.split()[2] for line in out.splitlines()[1:]] == ["2", "1", "0"]
    assert [line.split()[-2] for line in out.splitlines()[1:]] == ["yes", "no", "yes"]
    _, out, _ = run("sessions", "ls", "--incorrect", "--job", job_id, "--sample-index", 1)
    assert len(out.splitlines()) == 2
    query = wire.seen[-1].query
    assert (query["correct"], query["job_id"], query["sample_index"]) == ("false", job_id, "1")
    _, out, _ = run("sessions", "show", made[1])
    assert re.search(r"^embed +6x8 +F32", out, re.MULTILINE)
    assert "activations.safetensors" in out
    assert run("sessions", "rm", made[1], "--yes")[0] == 0
    assert len(service.client.get("/v1/activations/sessions").json()["data"]) == 2


def test_pull_of_damaged_bytes_fails_and_the_rest_is_pulled(
    service: Service, run: Run, tmp_path: Path
) -> None:
    _, (one, two) = graded(service)
    (stored,) = service.services.settings.home.rglob(f"{one}/manifest.json")
    stored.write_bytes(stored.read_bytes().replace(b"embed", b"enbed"))
    code, out, err = run("sessions", "download", one, two, "--out", tmp_path)
    assert code == 1
    assert out.splitlines() == [str(tmp_path / two)]
    assert "manifest.json: got" in err
    assert not (tmp_path / one / "manifest.json").exists()


def test_sessions_are_pulled_side_by_side_and_by_filter(service: Service, run: Run, tmp_path: Path) -> None:
    _, made = graded(service, "ynynyn")
    code, out, err = run(
        *("sessions", "download", *made, "--out", tmp_path / "all", "--jobs", 3, "--format", "json")
    )
    assert code == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == made, "in the order asked for"
    assert "in_progress 6/6" in err
    assert re.search(r"6 sessions, 12 files, [\d.]+ kB, verified", err)
    assert run("sessions", "download", "--correct", "--out", tmp_path / "right")[0] == 0
    assert {path.name for path in (tmp_path / "right").iterdir()} == set(made[::2])
    assert run("sessions", "download", "--out", tmp_path)[0] == 1, "neither ids nor filters"


def test_models_and_workers(service: Service, run: Run) -> None:
    busy, gone = service.load_model(), service.load_model()
    memory = {"load_before_bytes": 0, "load_after_bytes": 3 << 29, "load_peak_bytes": 2 << 30}
    with service.database.write() as session:
        workers.heartbeat(session, busy, memory)
        workers.set_offline(session, gone)
    assert run("models", "ls")[1].splitlines()[1].split()[:2] == ["demo", "loaded"]
    assert len(run("workers")[1].splitlines()) == 2
    assert "before 0 GiB, after 1.5 GiB, peak 2 GiB" in run("workers")[1]
    assert len(run("workers", "--all")[1].splitlines()) == 3
    _, out, _ = run("models", "structure")
    assert re.search(r"^num layers: +4$", out, re.MULTILINE)
    assert re.search(r"^embed +8 +float32 +no +model.embed_tokens.output$", out, re.MULTILINE)
    assert "the model has no experts" in out
    assert "up_proj" not in out
    assert "up_proj" in run("models", "structure", "--modules")[1]
    assert json.loads(run("models", "structure", "demo", "--format", "json")[1])["num_layers"] == 4


def test_a_missing_key_is_exit_4(
    keyed: Keyed, keyed_wire: Wire, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTOGRAPH_URL", keyed_wire.url)
    run = runner(capsys)
    made = keyed.client.post("/v1/jobs", json=capture_spec(), headers=keyed.headers()).json()["id"]
    code, _, err = run("jobs", "ls")
    assert (code, len(err.splitlines())) == (4, 1)
    assert "API key" in err
    assert run("jobs", "rm", "--yes", made)[0] == 4
    assert run("--api-key", ROOT_KEY, "jobs", "ls")[0] == 0


def test_open_prints_the_address_that_it_opens(
    service: Service, wire: Wire, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    job_id, (session_id,) = graded(service, "y")
    addresses = [f"{wire.url}/", f"{wire.url}/jobs/{job_id}", f"{wire.url}/sessions/{session_id}"]
    assert run("open")[1] + run("open", job_id[:-1])[1] + run("open", session_id)[1] == "".join(
        f"{address}\n" for address in addresses
    )
    assert opened == addresses
    assert run("open", "job_none")[0] != 0


def test_the_queue_is_shown_paused_and_resumed(service: Service, run: Run) -> None:
    service.load_model()
    waiting = service.submit(inputs=[{"prompt": str(i)} for i in range(3)])
    lines = [line.split(maxsplit=1) for line in run("queue", "info")[1].splitlines()]
    shown = (["paused:", "no"], ["jobs:", "1 queued"], ["samples:", "3 pending"], ["workers:", "1 ready"])
    assert all(line in lines for line in (*shown, ["next:", waiting]))
    assert run("queue", "pause", "--reason", "new disk")[:2] == (0, "paused\n")
    out = run("queue", "info")[1]
    assert out.splitlines()[0].split() == ["paused:", "yes"]
    assert re.search(r"KIND +REASON +BY +SINCE\nmanual +new disk +local +\d+[smhd]$", out)
    assert run("queue", "resume")[:2] == (0, "running\n")


def test_a_line_for_each_sample(service: Service, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right, wrong, failed."""
    monkeypatch.setenv("COLUMNS", "120")
    job_id = service.submit(inputs=[{"prompt": str(i)} for i in range(3)])
    right, wrong, failed = service.claim(job_id, 3)
    service.finish(right, completion="so it is\n#### 3", scores={STRICT: Score(value=1.0, answer="3")})
    session_id = service.finish(
        wrong, tensors=EMBED, completion="答" * 200, scores={STRICT: Score(value=0.0)}
    )
    with service.database.write() as session:
        leasing.fail(session, failed, CaptureFailed("no rows"))
    code, out, _ = run("jobs", "samples", job_id)
    assert code == 0
    lines = out.splitlines()
    assert lines[0].split()[:6] == ["SAMPLE", "INDEX", "CONDITION", "EPOCH", "STATUS", "CORRECT"]
    assert cells(lines[1])[:4] == ["0", "0", "completed", "yes"] and "so it is #### 3" in lines[1]
    assert str(session_id)[:16] in lines[2] and lines[2].endswith("答…")
    assert "capture_failed: no rows" in lines[3]


def test_a_load_is_waited_for(
    service: Service, wire: Wire, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker_id = service.load_model()

    def work(_seconds: float) -> None:
        """A worker loads the model while the command waits."""
        with service.database.write() as session:
            row = session.scalars(sa.select(JobRow).where(JobRow.kind == "load")).one()
            jobs.start(session, row.id)
            assert model_loads.begin(session, row, worker_id)
            model_loads.complete(session, row.id, structure())

    monkeypatch.setattr("actograph.cli.models.time.sleep", work)
    code, out, err = run(
        *("models", "load", "demo", "--dtype", "bfloat16", "--max-memory", "0=20GiB"),
        *("--max-memory", "cpu=1GB", "--savepoint", "late=resid_post.3", "--savepoint", "x=embed"),
    )
    assert (code, out, err) == (0, "demo completed\n", "")
    sent = [seen for seen in wire.seen if "/load" in seen.path]
    assert [seen.method for seen in sent] == ["POST", "GET"]
    assert json.loads(sent[0].body) == {
        "model_id": "demo",
        "dtype": "bfloat16",
        "max_memory": {"0": "20GiB", "cpu": "1GB"},
        "savepoints": [{"name": "late", "selector": "resid_post.3"}, {"name": "x", "selector": "embed"}],
    }


def test_changes_answer_as_json(service: Service, run: Run) -> None:
    def run_json(*words: object) -> list[Any]:
        return [json.loads(line) for line in run(*words, "--format", "json")[1].splitlines()]

    job_id = service.submit()
    assert [one["status"] for one in run_json("jobs", "cancel", job_id)] == ["cancelled"]
    assert [one["status"] for one in run_json("jobs", "retry", job_id)] == ["queued"]
    assert [one["deleted"] for one in run_json("jobs", "rm", "--yes", job_id)] == [True]
    _, (session_id,) = graded(service, "y")
    assert [one["id"] for one in run_json("sessions", "rm", session_id, "--yes")] == [session_id]
    assert run_json("queue", "pause")[0]["paused"]
    assert not run_json("queue", "resume")[0]["paused"]


def test_one_command_says_what_is_evaluated(service: Service, run: Run, tmp_path: Path) -> None:
    service.load_model()
    rows, shots = tmp_path / "rows.jsonl", tmp_path / "shots.jsonl"
    for path in (rows, shots):
        path.write_text(ROW)
    code, out, err = run(
        *("eval", "gsm8k", "--dataset", rows, "--fewshot-dataset", shots, "--no-watch"),
        *("--scorer", "numeric", "--scorer", '{"name": "efficiency", "target_tokens": 40}'),
        *("--tools", "calculator", "--condition", "plain:tools=none"),
        *("--condition", "EP02:suffix=This is very important to my career."),
    )
    assert (code, err) == (0, "")
    spec = service.client.get(f"/v1/jobs/{out.strip()}").json()["spec"]
    files = {one["id"]: one["filename"] for one in service.client.get("/v1/files").json()["data"]}
    named = [files[spec[field]["file_id"]] for field in ("dataset", "fewshot_dataset")]
    assert named == ["rows.jsonl", "shots.jsonl"]
    assert [scorer["name"] for scorer in spec["scorers"]] == ["numeric", "efficiency"]
    first, second = spec["conditions"]
    assert (spec["tools"], first["name"], first["tools"]) == ("calculator", "plain", "none")
    assert (second["name"], second["suffix"]) == ("EP02", "This is very important to my career.")


def test_rows_of_a_built_in_task_are_those_of_lm_eval(service: Service, run: Run) -> None:
    service.load_model()
    _, out, _ = run("eval", "gsm8k_cot_zeroshot", "--num-fewshot", 3, "--no-watch")
    spec = service.client.get(f"/v1/jobs/{out.strip()}").json()["spec"]
    hub = {"hub": "openai/gsm8k", "config": "main"}
    assert spec["dataset"].items() >= (hub | {"split": "test"}).items()
    assert spec["fewshot_dataset"].items() >= (hub | {"split": "train"}).items()


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--scorer", '{"name": "numeric", "target_tokens": 3}'), "scorers.0: "),
        (("--max-turns", "3"), "max_turns needs tools: calculator"),
        (("--tool-format", "annotations"), "tool_format needs tools: calculator"),
        (("--capture", "embed@first"), "capture: layers 'first' are not valid"),
        (("--condition", "a b"), "conditions.0.name: "),
    ],
)
def test_mistakes_are_found_before_anything_is_sent(
    wire: Wire, run: Run, flags: tuple[str, ...], reason: str
) -> None:
    code, out, err = run("eval", "gsm8k", "--model", "m", "--no-watch", *flags)
    assert (code, out) == (1, "")
    assert reason in err
    assert wire.seen == []


def test_comparisons_are_tables_and_follow_the_results(service: Service, run: Run) -> None:
    job_id = evaluated(service, "", conditions=[{"name": "plain"}, {"name": "kind"}])
    for lease in service.claim(job_id, 8):
        right = lease.condition == "kind" or lease.sample_index == 0
        service.finish(lease, scores={STRICT: Score(value=float(right))}, completion="33!" if right else "3")
    code, out, err = run("jobs", "watch", job_id)
    assert (code, err.splitlines()[-1]) == (0, f"job {job_id} completed")
    assert out.index("gsm8k   kind") < out.index("baseline: plain") < out.index("generated_tokens")
    code, out, _ = run("jobs", "watch", job_id, "--format", "json")
    assert [json.loads(line)["object"] for line in out.splitlines()] == ["job.results", "job.comparison"]
    code, out, err = run("jobs", "compare", job_id, "--baseline", "plain")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "baseline: plain"
    (row,) = (cells(line) for line in lines if STRICT in line)
    assert row[:6] == ["kind", STRICT, "4", "0.2500", "1.0000", "+0.7500"]
    code, out, err = run("jobs", "compare", job_id, "--texts", "--limit", 2, "--offset", 1)
    assert (code, err) == (0, "only 2 problems; show more with --limit and --offset\n")
    first, second = ([cells(line) for line in part.splitlines()] for part in out.split("\n\n"))
    assert first[1] == ["Condition", "Token", "Character", "Text"]
    assert (first[2], first[3][0], first[3][-1]) == (["plain", "3"], "kind", "33!")
    assert second[0][0].startswith("problem 2")
    for flags, says in [(("--hooks", "embed"), "need --texts"), (("--texts", "--level", "0.9"), "--level")]:
        code, _, err = run("jobs", "compare", job_id, *flags)
        assert code == 1 and says in err


def test_an_estimate_is_shown_and_its_upload_removed(
    service: Service, wire: Wire, run: Run, tmp_path: Path
) -> None:
    service.load_model()
    path = tmp_path / "rows.jsonl"
    path.write_text(ROW)
    code, out, err = run(
        *("estimate", "--dataset", path, "--capture", "resid_post@1", "--prompt-tokens", 100),
    )
    assert (code, err) == (0, "")
    assert service.client.get("/v1/files").json()["data"] == []
    assert service.client.get("/v1/jobs").json()["data"] == []
    sent = next(seen for seen in wire.seen if seen.path == "/v1/estimate")
    assert sent.query == {"prompt_tokens": "100"}
    shown = {name: text.strip() for name, _, text in (line.partition(":") for line in out.splitlines())}
    assert (shown["bytes per token"], shown["fits"]) == ("32 bytes", "unknown")
    assert re.fullmatch(r"needed [\d.]+ kB, available [\d.]+ GB, fits yes", shown["disk"])
