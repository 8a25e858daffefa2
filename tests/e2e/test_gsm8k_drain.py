"""The main job on the real GSM8K test set: drained unattended, and through a kill -9 in the middle."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actograph.client import Client
from actograph.contract.resources import JobStatus, Sample
from storage.artifacts.factory import open_store
from storage.sessions.writer import SessionReader

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


@pytest.mark.parametrize("problems", [150, pytest.param(1319, marks=pytest.mark.soak)])
def test_all_problems_are_drained_with_a_session_each(
    up: Callable[..., Any], wait: Callable[..., None], gone: Callable[..., bool], shared: Path, problems: int
) -> None:
    model = shared / "models" / "tiny-qwen3"
    service = up("--data-root", str(shared / "data"), model=str(model))
    service.await_ready()
    with Client(service.url) as client:
        job_id = submit(client, limit=problems)
        wait(ended(client, job_id), seconds=400)
        job = client.jobs.get(job_id)
        assert job.status is JobStatus.COMPLETED, job.error
        assert (job.progress.total, job.progress.completed, job.progress.failed) == (problems, problems, 0)
        samples = list(client.jobs.get(job_id).samples())
        assert [s.index for s in samples] == list(range(problems))
        questions = [
            json.loads(line)["question"]
            for line in (shared / "data" / "gsm8k" / "test.jsonl").read_text().splitlines()[:problems]
        ]
        assert [s.input["question"] for s in samples] == questions
        assert len({s.session_id for s in samples}) == problems
        assert {s.id for s in client.sessions.list(job_id=job_id)} == {s.session_id for s in samples}
        results = client.jobs.get(job_id).results().conditions["baseline"]
        assert results.samples == problems
        assert (
            results.metrics["exact_match,strict-match"]
            == sum(s.scores["exact_match,strict-match"].value for s in samples) / problems
        )
    processes = service.children()
    assert len(processes) >= 4
    assert service.stop() == 0
    assert gone(processes)
    check_sessions(service.home, samples, tokenizer_of(model))


def test_a_worker_killed_in_mid_drain_costs_what_it_ran_and_nothing_else(
    up: Callable[..., Any], wait: Callable[..., None], shared: Path
) -> None:
    """Sampled, several epochs of each problem: a sample that runs again gives the same text.

    The killed job is far longer than the test, so that the kill hits it on the fastest machine.
    """
    model = shared / "models" / "tiny-qwen3"
    epochs, problems = 4, 15
    drawn = {"epochs": epochs, "sampling": SAMPLED}
    service = up("--data-root", str(shared / "data"), model=str(model))
    service.await_ready()
    with Client(service.url) as client:
        undisturbed = submit(client, limit=problems, **drawn)
        wait(ended(client, undisturbed))
        metrics = client.jobs.get(undisturbed).results().conditions["baseline"].metrics
        assert {"pass@1,numeric", "pass@2,numeric", "pass@4,numeric", "maj@4,numeric"} < set(metrics)
        job_id = submit(client, **drawn)
        wait(lambda: client.jobs.get(job_id).progress.completed >= 10)
        killed = service.child("worker")
        killed.send_signal(signal.SIGKILL)
        killed.wait(120)
        before = {s.id: s for s in client.jobs.get(job_id).samples(status="completed")}
        leased = {s.id for s in client.jobs.get(job_id).samples(status="leased")}
        goal = len(before) + 2 * len(leased)
        wait(lambda: client.jobs.get(job_id).progress.completed >= goal)
        client.jobs.cancel(job_id)
        wait(ended(client, job_id))
        completed = {s.id: s for s in client.jobs.get(job_id).samples(status="completed")}
        for sample_id, sample in before.items():
            assert completed[sample_id].losses == 0
            assert completed[sample_id].session_id == sample.session_id
        again = {s.id for s in completed.values() if s.losses > 0}
        assert again == leased, "what was not committed at the kill ran again, and nothing else"
        assert len({s.session_id for s in completed.values()}) == len(completed)
        texts = {(s.index, s.epoch): s.completion for s in completed.values()}
        expected = {(s.index, s.epoch): s.completion for s in client.jobs.get(undisturbed).samples()}
        assert {place: texts[place] for place in expected} == expected
        assert len({texts[0, epoch] for epoch in range(epochs)}) > 1
    assert "SIGKILL" in service.said()
    assert service.stop() == 0
    check_sessions(service.home, list(completed.values()), tokenizer_of(model))


SAMPLED = {"max_tokens": 64, "temperature": 0.8, "top_p": 0.95, "seed": 11}
