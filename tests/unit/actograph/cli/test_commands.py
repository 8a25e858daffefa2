"""The commands against a real server: what they send, print and exit with."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from actograph.contract import models, operations, resources
from tests.support.command_line import Run

ROW = '{"question": "1+1?", "answer": "#### 2"}\n'


def results(job_id: str) -> resources.JobResults:
    return resources.JobResults(
        job_id=job_id,
        status=resources.JobStatus.COMPLETED,
        task="gsm8k",
        progress=resources.Progress(total=4, completed=4, failed=0),
        conditions={
            "baseline": resources.ConditionResults(
                alias="gsm8k",
                metrics={
                    "exact_match,strict-match": 0.25,
                    "exact_match_stderr,strict-match": 0.25,
                    "exact_match,flexible-extract": 0.5,
                    "exact_match_stderr,flexible-extract": None,
                },
                samples=4,
                failed=0,
                truncated=1,
            )
        },
    )


def test_jobs_ls_is_a_table(service: Any, run: Run) -> None:
    service.add_job(
        1, status="in_progress", progress={"total": 1319, "completed": 310, "failed": 2}, eta_seconds=61
    )
    service.add_job(2, tags=["night", "a"], status="queued", queue_position=3)
    code, out, err = run("jobs", "ls")
    lines = [line.split("   ") for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert lines[0][0] == "JOB ID"
    assert "job_000000000000" in lines[1][0]
    assert "queued #3" in out.splitlines()[1]
    assert out.splitlines()[1].endswith("night, a")
    assert "in_progress 312/1319, 2 failed" in out.splitlines()[2]
    assert "1m1s" in out.splitlines()[2]


def test_jobs_show(service: Any, run: Run) -> None:
    job = service.add_job(1, error={"type": "a", "message": "b"})
    service.results[job.id] = results(job.id)
    code, out, _ = run("jobs", "show", "job_0000")
    assert code == 0
    shown = [line.split(maxsplit=1) for line in out.splitlines()]
    assert all(line in shown for line in (["id:", job.id], ["error:", "a: b"], ["num_fewshot", "5"]))
    rows = [line.split() for line in out.splitlines() if line.startswith("gsm8k")]
    assert rows == [
        ["gsm8k", "baseline", "strict-match", "5", "exact_match", "0.2500", "0.2500", "4", "0"],
        ["gsm8k", "baseline", "flexible-extract", "5", "exact_match", "0.5000", "N/A", "4", "0"],
    ]
    assert json.loads(run("jobs", "show", job.id, "--format", "json")[1])["id"] == job.id


def test_submit_from_flags_uploads_the_dataset(service: Any, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(ROW)
    service.models = [models.Model(id="org/demo", created=1)]
    code, out, _ = run("jobs", "submit", "--dataset", path, "--no-chat-template", "--tag", "a", "--tag", "b")
    spec = service.jobs[out.strip()].spec
    (file_id,) = service.uploads
    assert (code, spec["dataset"]["file_id"]) == (0, file_id)
    assert service.uploads[file_id][1:] == ("dataset", ROW.encode())
    assert (spec["kind"], spec["model"], spec["task"]) == ("evaluation", "org/demo", "gsm8k")
    assert (spec["apply_chat_template"], spec["tags"]) == (False, ["a", "b"])


def test_submit_without_a_model_where_several_are_served(service: Any, run: Run) -> None:
    service.models = [models.Model(id=name, created=1) for name in ("a", "b")]
    code, _, err = run("jobs", "submit", "--prompt", "p")
    assert (code, err) == (1, "error: name a model; served: a, b\n")


@pytest.mark.parametrize(("status", "expected"), [("completed", 0), ("failed", 1), ("cancelled", 2)])
def test_watch_ends_with_the_jobs_end(service: Any, run: Run, status: str, expected: int) -> None:
    numbers = {"total": 4, "completed": 4, "failed": 0}
    job = service.add_job(1, status=status, progress=numbers, samples_per_second=2.0)
    service.results[job.id] = results(job.id)
    code, out, err = run("jobs", "watch", "job_0")
    assert code == expected
    assert out.split("\n")[0].split() == [
        *("Tasks", "Condition", "Filter", "n-shot", "Metric", "Value", "Stderr", "Samples", "Failed")
    ]
    assert f"{status} 4/4, 2.00 samples/s" in err
    assert err.splitlines()[-1] == f"job {job.id} {status}"
    assert "1 of 4 samples ended at max_tokens" in err


def test_cancel_and_rm_go_on_after_a_failure(service: Any, run: Run) -> None:
    ended, running = service.add_job(1), service.add_job(2, status="in_progress")
    code, out, err = run("jobs", "cancel", ended.id, running.id)
    assert (code, out) == (1, running.id + "\n")
    assert "completed already" in err
    assert run("jobs", "rm", "--yes", ended.id)[:2] == (0, ended.id + "\n")
    assert list(service.jobs) == [running.id]


def test_sessions_ls_show_and_rm(service: Any, run: Run) -> None:
    for number in range(3):
        service.add_session(number)
    _, out, _ = run("sessions", "ls")
    assert out.splitlines()[0].startswith("SESSION ID")
    assert [line.split()[2] for line in out.splitlines()[1:]] == ["2", "1", "0"]
    assert [line.split()[-2] for line in out.splitlines()[1:]] == ["yes", "no", "yes"]
    run("sessions", "ls", "--incorrect", "--job", f"job_{1:032x}", "--sample-index", 0)
    query = service.seen[-1].query
    assert (query["correct"], query["job_id"], query["sample_index"]) == ("false", f"job_{1:032x}", "0")
    _, out, _ = run("sessions", "show", f"ses_{1:032x}")
    assert "resid_post.1   7x4     F32" in out
    assert "activations.safetensors" in out
    assert run("sessions", "rm", f"ses_{1:032x}", "--yes")[0] == 0
    assert len(service.sessions) == 2


def test_pull_of_damaged_bytes_fails_and_the_rest_is_pulled(service: Any, run: Run, tmp_path: Path) -> None:
    one, two = service.add_session(1), service.add_session(2)
    service.stored[one.id, "manifest.json"] = b"[]"
    code, out, err = run("sessions", "download", one.id, two.id, "--out", tmp_path)
    assert code == 1
    assert out.splitlines() == [str(tmp_path / two.id)]
    assert "manifest.json: got" in err
    assert not (tmp_path / one.id / "manifest.json").exists()


def test_models_and_workers(service: Any, run: Run) -> None:
    service.models = [models.Model(id="org/demo", created=1, status="loaded")]
    service.workers = [
        operations.Worker(
            id=f"wrk_{n:032x}",
            status=status,
            hostname="h",
            pid=7,
            started_at=1,
            last_heartbeat_at=1,
            model="demo",
            memory={"load_before_bytes": 0, "load_after_bytes": 3 << 29, "load_peak_bytes": 2 << 30},
        )
        for n, status in enumerate([operations.WorkerStatus.BUSY, operations.WorkerStatus.OFFLINE])
    ]
    service.structure = models.ModelStructure(
        model="org/demo", architecture="Qwen3ForCausalLM", num_layers=2, hidden_size=96, vocab_size=577,
        context_length=2048, dtype="float32", device="cpu", num_parameters=1, chat_template=True,
        eos_token_ids=[2], unavailable={"router_logits": "dense"},
        hooks={"embed": models.HookInfo(location="model.embed_tokens.output", width=96, dtype="float32")},
        module_locations=["model.embed_tokens.output", "model.norm.output"],
    )  # fmt: skip
    assert run("models", "ls")[1].splitlines()[1].split() == ["org/demo", "loaded"]
    assert len(run("workers")[1].splitlines()) == 2
    assert "before 0 GiB, after 1.5 GiB, peak 2 GiB" in run("workers")[1]
    assert len(run("workers", "--all")[1].splitlines()) == 3
    _, out, _ = run("models", "structure")
    assert "num layers:      2" in out
    assert "embed      96   float32   no          model.embed_tokens.output" in out
    assert "router_logits   dense" in out
    assert "model.norm.output" not in out
    assert "model.norm.output" in run("models", "structure", "--modules")[1]
    assert json.loads(run("models", "structure", "org/demo", "--format", "json")[1])["num_layers"] == 2


def test_a_missing_key_is_exit_4(service: Any, run: Run) -> None:
    service.api_key = "secret"
    service.add_job(1)
    code, _, err = run("jobs", "ls")
    assert (code, len(err.splitlines())) == (4, 1)
    assert "API key" in err
    assert run("jobs", "rm", "--yes", f"job_{1:032x}")[0] == 4
    assert run("--api-key", "secret", "jobs", "ls")[0] == 0


def test_no_service_is_one_line(run: Run) -> None:
    code, out, err = run("--url", "http://127.0.0.1:9", "jobs", "ls")
    assert (code, out) == (1, "")
    assert err.startswith("error: cannot reach the service at http://127.0.0.1:9 (")
    assert err.endswith("; start it with: actograph up\n")


def test_usage_errors_are_not_exit_2(run: Run) -> None:
    for typed, told in [
        ("jobs frobnicate", "error: no such command 'frobnicate'; see: actograph jobs --help\n"),
        ("jobs show", "error: missing argument 'ID'; see: actograph jobs show --help\n"),
        ("jobs ls --nope", "error: no such option: --nope; see: actograph jobs ls --help\n"),
    ]:
        assert run(*typed.split()) == (1, "", told)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "no model: set --model"),
        (["--model", "./none"], "no folder './none'"),
        (["--model", "m", "--port", "70000"], "--port: "),
        (["--model", "m", "--dtype", "int4"], "--dtype: "),
    ],
)
def test_up_refuses_what_cannot_work(run: Run, tmp_path: Path, arguments: list[str], reason: str) -> None:
    code, out, err = run("up", "--home", tmp_path, *arguments)
    assert (code, out) == (1, "")
    assert reason in err.splitlines()[-1]


def test_version_and_help_are_quick_to_import() -> None:
    code = (
        "import sys; from actograph.cli import main; "
        "slow = {'httpx', 'rich', 'numpy', 'pydantic', 'torch', 'fastapi', 'celery'} & set(sys.modules); "
        "assert not slow, slow"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_open_prints_the_address_that_it_opens(
    service: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    job, session = service.add_job(1, status="queued"), service.add_session(1)
    addresses = [f"{service.url}/", f"{service.url}/jobs/{job.id}", f"{service.url}/sessions/{session.id}"]
    assert run("open")[1] + run("open", job.id[:-1])[1] + run("open", session.id)[1] == "".join(
        f"{address}\n" for address in addresses
    )
    assert opened == addresses
    assert run("open", "job_none")[0] != 0
