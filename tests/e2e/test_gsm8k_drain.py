"""The main job on the real GSM8K test set: drained unattended, and through a kill -9 in the middle."""

import json
import signal
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from actograph.client import Client
from actograph.contract.resources import JobStatus, Sample
from storage.artifacts.factory import open_store
from storage.index.database import Database
from storage.queue import leases
from storage.sessions.writer import SessionReader
from storage.tables.models import StateRow, WorkerRow

pytestmark = [pytest.mark.e2e, pytest.mark.integration]

CAPTURE = {"points": ["attn_in", "mlp_in"], "layers": "all"}
HOOKS = {"attn_in.0", "mlp_in.0", "attn_in.1", "mlp_in.1"}
WIDTH = 96


SPEC: dict[str, Any] = {
    "kind": "evaluation", "model": "tiny-qwen3", "task": "gsm8k", "capture": CAPTURE,
    "dataset": {"path": "gsm8k/test.jsonl"}, "sampling": {"max_tokens": 64},
}  # fmt: skip


def submit(client: Client, **changes: Any) -> str:
    return client.submit(SPEC | changes).id


def ended(client: Client, job_id: str) -> Callable[[], bool]:
    def is_ended() -> bool:
        return client.jobs.get(job_id).status.is_terminal()

    return is_ended


def check_sessions(home: Path, samples: list[Sample], vocabulary: Any) -> None:
    """Every sample's session holds P+G-1 finite rows of every hook and the tokens of its texts."""
    store = open_store((home / "artifacts").as_uri())
    for sample in samples:
        assert sample.session_id is not None and sample.prompt is not None
        assert sample.prompt_tokens is not None and sample.generated_tokens is not None
        reader = SessionReader(store, sample.session_id)
        reader.verify()
        rows = sample.prompt_tokens + sample.generated_tokens - 1
        assert set(reader.manifest.tensors) == HOOKS
        for hook in HOOKS:
            last = reader.rows(hook, rows - 1, rows)
            assert last.shape == (1, WIDTH)
            assert reader.manifest.tensors[hook].shape == (rows, WIDTH)
        ids = [int(i) for i in reader.token_ids()]
        assert len(ids) == rows + 1
        assert ids[: sample.prompt_tokens] == vocabulary.encode(sample.prompt, add_special_tokens=False)
        completion = vocabulary.decode(ids[sample.prompt_tokens :], skip_special_tokens=True)
        assert completion == sample.completion


def tokenizer_of(model: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)


def check_job(client: Client, job_id: str, data: Path, problems: int, epochs: int = 1) -> list[Sample]:
    """Every problem is answered once per epoch, with a session and a score of its own."""
    count = problems * epochs
    job = client.jobs.get(job_id)
    assert job.status is JobStatus.COMPLETED, job.error
    assert (job.progress.total, job.progress.completed, job.progress.failed) == (count, count, 0)
    samples = list(job.samples())
    assert sorted((s.sample_index, s.epoch) for s in samples) == list(product(range(problems), range(epochs)))
    lines = (data / "gsm8k" / "test.jsonl").read_text().splitlines()[:problems]
    questions = [json.loads(line)["question"] for line in lines]
    assert [s.input["question"] for s in samples] == [questions[s.sample_index] for s in samples]
    assert len({s.session_id for s in samples}) == count
    assert {s.id for s in client.sessions.list(job_id=job_id)} == {s.session_id for s in samples}
    results = job.results().conditions["baseline"]
    assert results.samples == count
    right = sum(s.scores["exact_match,strict-match"].value for s in samples)
    assert results.metrics["exact_match,strict-match"] == pytest.approx(right / count)
    return samples


def silence(home: Path, worker_id: str) -> None:
    """Age a dead worker's heartbeat, so that nobody waits for the end of its leases."""
    database = Database(f"sqlite:///{home / 'actograph.db'}")
    with database.write() as session:
        session.execute(sa.update(WorkerRow).where(WorkerRow.id == worker_id).values(heartbeat_at=0.0))
        session.execute(sa.update(StateRow).where(StateRow.name == leases.BEGIN).values(at=0.0))
    database.close()


@pytest.mark.soak
def test_all_problems_are_drained_with_a_session_each(
    up: Callable[..., Any], wait: Callable[..., None], shared: Path
) -> None:
    model = shared / "models" / "tiny-qwen3"
    service = up("--data-root", str(shared / "data"), model=str(model))
    service.await_ready()
    with Client(service.url) as client:
        job_id = submit(client)
        wait(ended(client, job_id), seconds=400)
        samples = check_job(client, job_id, shared / "data", 1319)
    assert service.stop() == 0
    check_sessions(service.home, samples, tokenizer_of(model))


def test_a_worker_killed_in_mid_drain_costs_what_it_ran_and_nothing_else(
    up: Callable[..., Any],
    wait: Callable[..., None],
    gone: Callable[..., bool],
    shared: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Sampled, several epochs of each problem: a sample that runs again gives the same text.

    The killed job is far longer than the test, so that the kill hits it on the fastest machine.
    """
    monkeypatch.setenv("ACTOGRAPH_SLOTS", "16")
    model = shared / "models" / "tiny-qwen3"
    epochs, problems = 4, 15
    drawn = {"epochs": epochs, "sampling": SAMPLED}
    service = up("--data-root", str(shared / "data"), model=str(model))
    service.await_ready()
    with Client(service.url) as client:
        undisturbed = submit(client, limit=problems, **drawn)
        wait(ended(client, undisturbed))
        alone = check_job(client, undisturbed, shared / "data", problems, epochs)
        metrics = client.jobs.get(undisturbed).results().conditions["baseline"].metrics
        assert {"pass@1,numeric", "pass@2,numeric", "pass@4,numeric", "maj@4,numeric"} < set(metrics)
        expected = {(s.sample_index, s.epoch): s.completion for s in alone}
        job_id = submit(client, limit=20 * problems, **drawn)

        def of_status(status: str) -> dict[str, Sample]:
            return {s.id: s for s in client.jobs.get(job_id).samples(status=status)}

        def ran_again() -> bool:
            done = of_status("completed")
            return leased <= done.keys() and expected.keys() <= {
                (s.sample_index, s.epoch) for s in done.values()
            }

        wait(lambda: client.jobs.get(job_id).progress.completed >= 10)
        (worker_id,) = (one.id for one in client.workers.list() if one.device)
        killed = service.child("worker")
        killed.send_signal(signal.SIGKILL)
        killed.wait(120)
        before, leased = of_status("completed"), of_status("leased").keys()
        assert leased
        silence(service.home, worker_id)
        wait(ran_again)
        client.jobs.cancel(job_id)
        wait(ended(client, job_id))
        completed = of_status("completed")
        for sample_id, sample in before.items():
            assert completed[sample_id].losses == 0
            assert completed[sample_id].session_id == sample.session_id
        again = {s.id for s in completed.values() if s.losses > 0}
        assert again == leased, "what was not committed at the kill ran again, and nothing else"
        assert len({s.session_id for s in completed.values()}) == len(completed)
        texts = {(s.sample_index, s.epoch): s.completion for s in completed.values()}
        assert {place: texts[place] for place in expected} == expected
        assert len({texts[0, epoch] for epoch in range(epochs)}) > 1
    assert "SIGKILL" in service.said()
    processes = service.children()
    assert len(processes) >= 4
    assert service.stop() == 0
    assert gone(processes)
    check_sessions(service.home, list(completed.values()), tokenizer_of(model))


@pytest.mark.soak
def test_a_replay_goes_on_after_its_worker_was_killed(
    up: Callable[..., Any], wait: Callable[..., None], shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every session is read once more, and no difference is found."""
    monkeypatch.setenv("ACTOGRAPH_SLOTS", "1")
    service = up(model=str(shared / "models" / "tiny-qwen3"))
    service.await_ready()
    texts = [f"Tom has {a} apples and buys {a + 7} more. How many?" for a in range(300)]
    with Client(service.url) as client:
        source = client.capture(texts, capture="resid_post.1", max_tokens=2).wait(timeout=300)
        replay = client.replay(source, capture="resid_post,attn_out,mlp_out@all")
        wait(lambda: client.jobs.get(replay.id).progress.completed >= 3)
        (worker_id,) = (one.id for one in client.workers.list() if one.device)
        killed = service.child("worker")
        killed.send_signal(signal.SIGKILL)
        killed.wait(120)
        assert client.jobs.get(replay.id).progress.completed < len(texts)
        silence(service.home, worker_id)
        wait(ended(client, replay.id), seconds=300)
        job = client.jobs.get(replay.id)
        assert (job.status, job.progress.completed) == (JobStatus.COMPLETED, len(texts)), job.error
        assert any(one.losses for one in job.samples())
        made = list(client.sessions.list(job_id=replay.id))
        of_source = {one.id for one in client.sessions.list(job_id=source.id)}
        assert len(made) == len(texts) and {one.source_session for one in made} == of_source
        found = job.results().compared["resid_post.1"]
        assert found.rows == sum(one.rows for one in made)
        assert found.difference <= found.tolerance * found.scale
    assert service.stop() == 0


@pytest.mark.soak
def test_a_patch_job_goes_on_after_its_worker_was_killed(
    up: Callable[..., Any], wait: Callable[..., None], shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pairs that had ended keep their results, and no pair is lost."""
    monkeypatch.setenv("ACTOGRAPH_SLOTS", "4")
    service = up(model=str(shared / "models" / "tiny-qwen3"))
    service.await_ready()
    sides = {"clean": "3", "corrupted": "7"}
    inputs = [
        {"prompt": f"Tom has 1{number} apples and buys {a} more. How many?", "group": a, "tags": [side]}
        for a in range(10, 40)
        for side, number in sides.items()
    ]
    with Client(service.url) as client:
        source = client.capture(inputs, capture="resid_pre,mlp_out@all", mode="prefill").wait(timeout=300)
        queries = [{"jobs": [source.id], "tag": side} for side in sides]
        points = ["resid_pre", "mlp_out"]
        patched = client.patch(*queries, pair_by="group", points=points, answer=5)
        wait(lambda: client.jobs.get(patched.id).progress.completed >= 3)
        before = {one.id: one.session_id for one in patched.samples() if one.session_id}
        (worker_id,) = (one.id for one in client.workers.list() if one.device)
        killed = service.child("worker")
        killed.send_signal(signal.SIGKILL)
        killed.wait(120)
        assert client.jobs.get(patched.id).progress.completed < 30
        silence(service.home, worker_id)
        wait(ended(client, patched.id), seconds=300)
        job = client.jobs.get(patched.id)
        assert (job.status, job.progress.completed) == (JobStatus.COMPLETED, 30), job.error
        after = {one.id: one.session_id for one in job.samples()}
        assert before.items() <= after.items() and any(one.losses for one in job.samples())
        found = job.patching()
        assert len(found.result.pairs) == 30 and not np.isnan(found["metric"]).any()
    assert service.stop() == 0


SAMPLED = {"max_tokens": 64, "temperature": 0.8, "top_p": 0.95, "seed": 11}
