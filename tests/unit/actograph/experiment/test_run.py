"""`actograph run`: every stage once, whatever is killed when."""

import json
from pathlib import Path
from typing import Any

import pytest

from actograph.cli.main import main
from actograph.contract.resources import JobStatus
from actograph.experiment.run_folder import RunFolder

JOBS = {
    "plain.temperature-0.0", "plain.temperature-0.7", "long.temperature-0.0", "long.temperature-0.7",
}  # fmt: skip


def posts(fake: Any, path: str) -> int:
    return sum(seen.path == path for seen in fake.seen if seen.method == "POST")


def assert_done_once(fake: Any, experiment: Path) -> None:
    folder = experiment.parent / "runs" / "career"
    (analysis,) = (job for job in fake.jobs.values() if job.kind == "outliers")
    analyses = {job.id for job in fake.jobs.values() if job.kind in ("outliers", "probe", "compare")}
    assert (len(analyses), len(fake.jobs)) == (3, len(JOBS) + 3)
    assert len(fake.uploads) == 1
    assert posts(fake, "/v1/models/load") == 1
    assert {path.name for path in (folder / "results").iterdir()} == JOBS
    state = json.loads((folder / "state.json").read_text())
    assert set(state["stages"]) == {"deploy", "model", "evaluate", "analyse", "fetch", "report"}
    evaluated = state["stages"]["evaluate"]["jobs"]
    assert set(evaluated.values()) == set(fake.jobs) - analyses
    assert set(analysis.spec["jobs"]) == {evaluated[name] for name in JOBS if name.startswith("plain")}
    assert analysis.spec["threshold"] == 5.0
    assert state["stages"]["analyse"]["jobs"]["features"] == analysis.id
    assert set(state["stages"]["analyse"]["jobs"].values()) == analyses
    assert (folder / "report.md").read_text().startswith("# Careers\n")
    assert (folder / "report.md").read_text().count("exact_match,strict-match") == len(JOBS)
    for kind in ("outliers", "probe", "compare"):
        assert f'"{kind}": 3' in (folder / "report.md").read_text()


def test_all_stages_and_then_nothing(fake: Any, experiment: Path) -> None:
    assert main(["run", str(experiment)]) == 0
    assert_done_once(fake, experiment)
    bodies = sorted(
        (job.spec["sampling"]["temperature"], job.spec["sampling"]["max_tokens"])
        for job in fake.jobs.values()
        if job.kind == "evaluation"
    )
    default = bodies[1][1]
    assert bodies == sorted([(0.0, default), (0.7, default), (0.0, 64), (0.7, 64)])
    before = len([seen for seen in fake.seen if seen.method == "POST"])
    assert main(["run", str(experiment)]) == 0
    assert len([seen for seen in fake.seen if seen.method == "POST"]) == before
    assert_done_once(fake, experiment)


class Killed(BaseException):
    """Stands for SIGKILL: no handler catches it."""


@pytest.mark.parametrize("before_writing", [True, False], ids=["before", "after"])
def test_killed_at_every_write_and_run_again(
    fake: Any, experiment: Path, monkeypatch: pytest.MonkeyPatch, before_writing: bool
) -> None:
    """Each run gets one write further than the last: the state is lost at every place once."""
    save = RunFolder.save

    def killing(budget: list[int]) -> Any:
        def killed_save(folder: RunFolder) -> None:
            if not before_writing:
                save(folder)
            budget[0] -= 1
            if budget[0] < 0:
                raise Killed
            if before_writing:
                save(folder)

        return killed_save

    kills = 0
    for _ in range(100):
        # the list of jobs has the load as soon as it was asked for
        if posts(fake, "/v1/models/load"):
            fake.jobs.setdefault(fake.loaded.id, fake.loaded)
        monkeypatch.setattr(RunFolder, "save", killing([1 if before_writing else 0]))
        try:
            assert main(["run", str(experiment)]) == 0
            break
        except Killed:
            kills += 1
    assert kills >= 8
    fake.jobs.pop(fake.loaded.id, None)
    assert_done_once(fake, experiment)


def test_a_changed_job_runs_alone(fake: Any, experiment: Path) -> None:
    assert main(["run", str(experiment)]) == 0
    experiment.write_text(experiment.read_text().replace("max_tokens: 64", "max_tokens: 32"))
    assert main(["run", str(experiment)]) == 0
    assert len(fake.jobs) == 7 + 2, "the analysis reads other jobs"
    assert len(fake.uploads) == 1


def test_other_data_is_other_work(fake: Any, experiment: Path) -> None:
    assert main(["run", str(experiment), "--stages", "evaluate"]) == 0
    (experiment.parent / "problems.jsonl").write_text('{"question": "1 + 2?", "answer": "#### 3"}\n')
    assert main(["run", str(experiment), "--stages", "evaluate"]) == 0
    assert (len(fake.jobs), len(fake.uploads)) == (8, 2)


def test_stages_alone(fake: Any, experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(experiment), "--stages", "report"]) == 1
    assert "the stage evaluate is not done" in capsys.readouterr().err
    assert main(["run", str(experiment), "--stages", "evaluate,report"]) == 0
    assert posts(fake, "/v1/models/load") == 0
    assert main(["run", str(experiment), "--stages", "analyze"]) == 1
    assert "it has deploy, model, evaluate, analyse, fetch, report" in capsys.readouterr().err


def test_a_failed_job_is_retried_by_the_next_run(
    fake: Any, experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_job = fake.run_job
    fake.run_job = lambda job: run_job(job).model_copy(update={"status": JobStatus.FAILED})
    assert main(["run", str(experiment)]) == 1
    failed = capsys.readouterr().err.rpartition("jobs failed: ")[2].partition(";")[0]
    assert set(failed.split(", ")) == JOBS
    assert len(fake.jobs) == len(JOBS)
    for job_id, job in fake.jobs.items():
        fake.jobs[job_id] = run_job(job)
    fake.run_job = run_job
    assert main(["run", str(experiment)]) == 0
    assert_done_once(fake, experiment)


def test_two_processes_do_not_run_one_experiment(
    fake: Any, experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunFolder(experiment.parent / "runs" / "career").locked():
        assert main(["run", str(experiment)]) == 1
    assert "another process" in capsys.readouterr().err
    assert fake.jobs == {}
