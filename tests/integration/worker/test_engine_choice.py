"""A job's engine: chosen by its spec, named with its reason by the job and by its sessions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from actograph.client.stored_session import open_folder
from actograph.contract.models import ModelIdentity
from actograph.contract.resources import JobStatus
from storage.jobs import jobs
from storage.queue import view
from storage.sessions.writer import SessionReader
from tests.support.engine_double import Watched
from tests.support.submitting import insert_chat
from worker.engine.messages import Request, RunStatistics

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

#: two prompts of several lengths, with edits and a reduction beside plain rows
BODY: dict[str, Any] = {
    "inputs": [{"prompt": "Tom has 34 books."}, {"prompt": "one"}],
    "interventions": [{"hook": "resid_post.1", "op": "scale", "coefficient": 1.5}],
    "capture": {"points": ["mlp_in", "resid_post"], "layers": "all"},
}


class Noted(Watched):
    """Notes of each run whether it was traced, and its samples."""

    def __init__(self, engine: Any) -> None:
        super().__init__(engine, self._note)
        self.runs: list[tuple[bool, set[str]]] = []

    def run(self, **of_run: Any) -> RunStatistics:
        self.runs.append((of_run["options"].traced, set()))
        return super().run(**of_run)

    def _note(self, requests: Sequence[Request]) -> None:
        self.runs[-1][1].update(one.key.partition(".")[0] for one in requests)


@pytest.fixture(autouse=True)
def identity(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs are pinned, as to any loaded model."""
    names = ("model", "source", "weights_sha256", "dtype", "tokenizer_sha256")
    identity = ModelIdentity(**dict.fromkeys(names, "tiny-qwen3"))
    changed = bench.engine.structure.model_copy(update={"identity": identity})
    monkeypatch.setattr(bench.engine, "structure", changed)


def test_jobs_say_which_engine_runs_them(bench: "Bench") -> None:
    noted = bench.engine = Noted(bench.engine)  # type: ignore[assignment]
    submitted = {choice: bench.submit(engine=choice, **BODY) for choice in ("auto", "streaming", "traced")}
    bench.drain(slots=8).look()
    ids = {choice: {one.id for one in bench.samples(job_id)} for choice, job_id in submitted.items()}
    assert noted.runs == [(False, ids["auto"] | ids["streaming"]), (True, ids["traced"])]
    rows: dict[str, list[Any]] = {}
    for choice, job_id in submitted.items():
        with bench.database.read() as session:
            job = view.job(session, jobs.get(session, job_id))
        expected = ("traced", "the job asks for it") if choice == "traced" else ("streaming", None)
        assert (job.status, job.engine, job.engine_reason) == (JobStatus.COMPLETED, *expected)
        stored = [SessionReader(bench.store, str(one.session_id)) for one in bench.samples(job_id)]
        assert {(one.manifest.engine, one.manifest.engine_reason) for one in stored} == {expected}
        folder = bench.settings.home / "artifacts" / "sessions"
        rows[choice] = [open_folder(folder / one.manifest.session_id) for one in stored]
    for auto, traced in zip(rows["auto"], rows["traced"], strict=True):
        assert auto.keys() == traced.keys()
        for hook in auto:
            np.testing.assert_allclose(auto[hook][:], traced[hook][:], atol=1e-4, rtol=1e-4)


def test_a_model_that_needs_traces_is_not_streamed_silently(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"engine": "traced", "engine_reason": "its attention is unknown"}
    monkeypatch.setattr(bench.engine, "structure", bench.engine.structure.model_copy(update=found))
    refused, runs = (bench.submit(engine=choice, **BODY) for choice in ("streaming", "auto"))
    bench.drain().look()
    with bench.database.read() as session:
        error = view.job(session, jobs.get(session, refused)).error
    assert error is not None
    assert "cannot be streamed: its attention is unknown; use engine auto or traced" in error.message
    assert bench.status(runs) is JobStatus.COMPLETED
    manifest = SessionReader(bench.store, str(bench.samples(runs)[0].session_id)).manifest
    assert (manifest.engine, manifest.engine_reason) == ("traced", "its attention is unknown")


def test_chats_join_the_run_of_a_model_that_needs_traces(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"engine": "traced", "engine_reason": "its attention is unknown"}
    monkeypatch.setattr(bench.engine, "structure", bench.engine.structure.model_copy(update=found))
    chats: list[str] = []

    class Asked(Noted):
        def run(self, **of_run: Any) -> RunStatistics:
            if not chats:
                chats.append(insert_chat(bench.database, "tiny-qwen3"))
            return super().run(**of_run)

    noted = bench.engine = Asked(bench.engine)  # type: ignore[assignment]
    night = bench.submit(**BODY)
    bench.drain().look()
    ids = {one.id for job_id in (night, *chats) for one in bench.samples(job_id)}
    assert noted.runs == [(True, ids)]
    assert bench.status(chats[0]) is JobStatus.COMPLETED
