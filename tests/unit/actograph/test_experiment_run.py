"""Runs of an experiment after edits, and against a service that lost jobs and files."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actograph.client import ApiError
from actograph.client.downloads import SUMMARY_NAME
from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import JobStatus
from actograph.experiment.experiment import read
from actograph.experiment.run import ExperimentRun, RunFolder

TEXT = """\
name: tools
evaluate:
  base: {model: demo, dataset: problems.jsonl, limit: 1}
  jobs: {plain: {}}
fetch: {activations: none}
"""


class Remembered:
    """Stands in for a service: jobs by idempotency key, and files."""

    def __init__(self) -> None:
        self.keys: dict[str, str] = {}
        self.bodies: dict[str, dict[str, Any]] = {}
        self.uploads: dict[str, bytes] = {}
        self.made = 0
        self.jobs = SimpleNamespace(list=self._list, get=self._job, wait=self._job)
        self.files = SimpleNamespace(
            list=lambda purpose: [], get=self._file, upload=self._upload, content=self.uploads.get
        )

    def submit(self, body: dict[str, Any], *, idempotency_key: str) -> Any:
        assert len(idempotency_key) <= 255
        if body["dataset"]["file_id"] not in self.uploads:
            raise ApiError("no such file", status=422, code="invalid_request")
        if idempotency_key not in self.keys:
            self.made += 1
            job_id = self.keys[idempotency_key] = f"job_{self.made}"
            self.bodies[job_id] = body
        return self._job(self.keys[idempotency_key])

    def delete(self, job_id: str) -> None:
        del self.bodies[job_id]
        self.keys = {key: one for key, one in self.keys.items() if one != job_id}

    def _list(self, tag: str) -> list[Any]:
        return [self._job(one) for one, body in self.bodies.items() if tag in body["tags"]]

    def _job(self, job_id: str, **_: Any) -> Any:
        if job_id not in self.bodies:
            raise ApiError("no such job", status=404, code="not_found")

        def pull(folder: Path, activations: str) -> Any:
            if folder.exists() and json.loads((folder / SUMMARY_NAME).read_text())["job_id"] != job_id:
                raise InvalidRequest("contains results of another job")
            folder.mkdir(exist_ok=True)
            (folder / SUMMARY_NAME).write_text(json.dumps({"job_id": job_id}))
            return SimpleNamespace(samples=1)

        progress = SimpleNamespace(failed=0)
        return SimpleNamespace(
            id=job_id, status=JobStatus.COMPLETED, progress=progress, error=None, export=pull
        )

    def _file(self, file_id: str) -> Any:
        if file_id not in self.uploads:
            raise ApiError("no such file", status=404, code="not_found")
        return SimpleNamespace(id=file_id)

    def _upload(self, path: Path, progress: bool = False) -> Any:
        name = f"file_{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}_{len(self.uploads)}"
        self.uploads[name] = path.read_bytes()
        return self._file(name)


@pytest.fixture
def service() -> Remembered:
    return Remembered()


@pytest.fixture
def run(service: Remembered, tmp_path: Path) -> Callable[[str], dict[str, bool]]:
    """Writes the experiment, runs it, and returns what was done before."""
    (tmp_path / "problems.jsonl").write_text("{}")

    def go(text: str) -> dict[str, bool]:
        (tmp_path / "tools.yaml").write_text(text)
        experiment, folder = read(tmp_path / "tools.yaml"), RunFolder(tmp_path / "run")
        client: Any = service
        made = ExperimentRun(client, experiment, folder, tmp_path, service="here", note=lambda _: None)
        done = made.plan(experiment.stages)
        made.run(experiment.stages)
        assert ExperimentRun(client, experiment, folder, tmp_path, service="here", note=lambda _: None).plan(
            experiment.stages
        ) == dict.fromkeys(experiment.stages, True)
        return done

    return go


def fetched(folder: Path) -> dict[str, str]:
    return {
        one.name: json.loads((one / SUMMARY_NAME).read_text())["job_id"]
        for one in (folder / "run" / "results").iterdir()
    }


def test_after_an_edit_the_new_results_are_fetched_and_the_former_kept(
    run: Callable[[str], dict[str, bool]], tmp_path: Path
) -> None:
    edited = TEXT.replace("limit: 1", "limit: 2")
    assert run(TEXT) == {"evaluate": False, "fetch": False}
    assert run(TEXT) == {"evaluate": True, "fetch": True}
    assert run(edited) == {"evaluate": False, "fetch": False}
    assert fetched(tmp_path) == {"plain": "job_2", "plain-job_1": "job_1"}
    # and back: the first job is known to the service still
    run(TEXT)
    assert fetched(tmp_path) == {"plain": "job_1", "plain-job_2": "job_2"}
    run(edited)
    assert fetched(tmp_path) == {"plain": "job_2", "plain-job_1": "job_1"}


def test_what_the_service_lost_is_made_again(
    service: Remembered, run: Callable[[str], dict[str, bool]], tmp_path: Path
) -> None:
    run(TEXT)
    service.delete("job_1")
    service.uploads.clear()
    assert run(TEXT) == {"evaluate": False, "fetch": False}
    assert list(service.bodies) == ["job_2"]
    assert service.bodies["job_2"]["dataset"]["file_id"] in service.uploads
    assert fetched(tmp_path)["plain"] == "job_2"
    # a file alone: a new job uploads it again
    service.uploads.clear()
    assert run(TEXT) == {"evaluate": True, "fetch": True}
    run(TEXT.replace("limit: 1", "limit: 3"))
    assert len(service.uploads) == 1


def test_jobs_with_long_names_have_keys_of_their_own(
    service: Remembered, run: Callable[[str], dict[str, bool]]
) -> None:
    long = "x" * 64
    sweep = "".join(f"    sampling.{field}: [0.25, 0.5]\n" for field in ("temperature", "top_p"))
    run(TEXT.replace("{plain: {}}", f"{{{long}: {{}}, {long[:-1]}: {{}}}}\n  sweep:\n{sweep}".rstrip()))
    assert len(service.bodies) == 8
    assert len(set(service.keys)) == 8
