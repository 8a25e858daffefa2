"""A fake service that runs jobs at once, and an experiment beside its dataset."""

from pathlib import Path
from typing import Any

import pytest

from actograph.client.blocking.resources.jobs import Jobs
from actograph.client.pulls.results_folder import PulledResults
from actograph.contract import resources

EXPERIMENT = """\
name: career
model:
  model_id: demo
evaluate:
  base:
    model: demo
    task: gsm8k
    dataset: problems.jsonl
    limit: 2
  jobs:
    plain:
    long: {sampling: {max_tokens: 64}}
  sweep:
    sampling.temperature: [0.0, 0.7]
fetch: {activations: none}
report: {title: Careers}
analyse:
  jobs:
    features: {kind: outliers, of: [plain], threshold: 5}
    direction: {kind: probe, of: [plain], label: job}
    difference: {kind: compare, of: [plain], permutations: 99}
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    (tmp_path / "problems.jsonl").write_text('{"question": "1 + 1?", "answer": "#### 2"}\n' * 2)
    path = tmp_path / "career.yaml"
    path.write_text(EXPERIMENT)
    return path


@pytest.fixture
def fake(service: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Jobs complete at once; a model load is a job too."""
    service.models = [resources.Model(id="demo", created=1)]
    service.structure = resources.ModelStructure(
        model="demo", architecture="Tiny", num_layers=1, hidden_size=4, vocab_size=10, context_length=64,
        dtype="float32", device="cpu", num_parameters=1, chat_template=False, eos_token_ids=[0], hooks={},
        module_locations=[],
    )  # fmt: skip
    load = service.add_job(900, kind="load", status="completed")
    del service.jobs[load.id]
    loaded = resources.ModelLoad(
        id=load.id, model="demo", status=resources.JobStatus.COMPLETED, created_at=1, options={}
    )
    service.model_loads = [loaded]
    service.loaded = load

    def run_job(job: resources.Job) -> resources.Job:
        progress = resources.Progress(total=2, completed=2, failed=0)
        conditions = {
            "baseline": resources.ConditionResults(
                alias="baseline", metrics={"exact_match,strict-match": 0.5}, samples=2, failed=0, truncated=0
            )
        }
        service.results[job.id] = resources.JobResults(
            job_id=job.id,
            status=resources.JobStatus.COMPLETED,
            progress=progress,
            conditions=conditions if job.kind == "evaluation" else {},
            analysis=None if job.kind == "evaluation" else {job.kind: 3},
        )
        return job.model_copy(update={"status": resources.JobStatus.COMPLETED, "progress": progress})

    service.run_job = run_job

    def pull(_: Jobs, job_id: str, folder: Path, **__: Any) -> PulledResults:
        folder.mkdir(exist_ok=True)
        (folder / "results.json").write_text(job_id)
        return PulledResults(folder=folder, samples=2, sessions=0, complete=True)

    monkeypatch.setattr(Jobs, "pull_results", pull)
    monkeypatch.setenv("ACTOGRAPH_URL", service.url)
    return service
