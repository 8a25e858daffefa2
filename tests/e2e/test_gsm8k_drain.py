"""The main job on the real GSM8K test set: drained unattended, and through a kill -9 in the middle."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actograph.client import Client
from actograph.contract.resources import JobStatus, Sample, SampleStatus
from storage.artifacts.factory import open_store
from storage.sessions.writer import SessionReader

pytestmark = [pytest.mark.e2e, pytest.mark.integration]

CAPTURE = {"points": ["attn_in", "mlp_in"], "layers": "all"}
HOOKS = {"attn_in.0", "mlp_in.0", "attn_in.1", "mlp_in.1"}
WIDTH = 96
PROBLEMS = 1319


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


def test_all_problems_are_drained_with_a_session_each(
    up: Callable[..., Any], wait: Callable[..., None], shared: Path
) -> None:
    model = shared / "models" / "tiny-qwen3"
    service = up("--data-root", str(shared / "data"), model=str(model))
    service.await_ready()
    with Client(service.url) as client:
        told = client.jobs.estimate(SPEC)
        job_id = submit(client)
        wait(ended(client, job_id), seconds=400)
        job = client.jobs.get(job_id)
        assert job.status is JobStatus.COMPLETED, job.error
        assert (job.progress.total, job.progress.completed, job.progress.failed) == (PROBLEMS, PROBLEMS, 0)
        samples = list(client.jobs.samples(job_id))
        assert [s.index for s in samples] == list(range(PROBLEMS))
        # the worker left its tokenizer in the index
        assert told.prompt_tokens_source == "measured_prompts"
        lengths = [s.prompt_tokens or 0 for s in samples]
        assert told.prompt_tokens_mean == pytest.approx(sum(lengths) / PROBLEMS, rel=0.03)
        questions = [
            json.loads(line)["question"]
            for line in (shared / "data" / "gsm8k" / "test.jsonl").read_text().splitlines()
        ]
        assert [s.input["question"] for s in samples] == questions
        assert len({s.session_id for s in samples}) == PROBLEMS
        assert {s.id for s in client.sessions.list(job_id=job_id)} == {s.session_id for s in samples}
        results = client.jobs.results(job_id).conditions["baseline"]
        assert results.samples == PROBLEMS
        assert (
            results.metrics["exact_match,strict-match"]
            == sum(s.scores["exact_match,strict-match"].value for s in samples) / PROBLEMS
        )
    assert service.stop() == 0
    check_sessions(service.home, samples, tokenizer_of(model))


def test_a_worker_killed_in_mid_drain_costs_the_samples_in_hand_and_nothing_else(
    up: Callable[..., Any], wait: Callable[..., None], shared: Path
) -> None:
    """Sampled, several epochs of each problem: what is run again gives what it would have given."""
    model = shared / "models" / "tiny-qwen3"
    limit, epochs = 75, 4
    total = limit * epochs
    drawn = {"limit": limit, "epochs": epochs, "sampling": SAMPLED}
    service = up("--data-root", str(shared / "data"), model=str(model))
    service.await_ready()
    with Client(service.url) as client:
        undisturbed = submit(client, **drawn)
        wait(ended(client, undisturbed), seconds=200)
        job_id = submit(client, **drawn)
        wait(lambda: client.jobs.get(job_id).progress.completed >= 50)
        service.child("worker").send_signal(signal.SIGKILL)
        before = {s.id: s for s in client.jobs.samples(job_id, status="completed")}
        assert 50 <= len(before) < total
        wait(ended(client, job_id), seconds=200)
        after = {s.id: s for s in client.jobs.samples(job_id)}
        assert {s.status for s in after.values()} == {SampleStatus.COMPLETED}
        assert len(after) == total
        for sample_id, sample in before.items():
            assert after[sample_id].attempts == 1
            assert after[sample_id].session_id == sample.session_id
        again = [s for s in after.values() if s.attempts > 1]
        assert 0 < len(again) <= 64, "at most the samples in hand were run again"
        assert len({s.session_id for s in after.values()}) == total
        texts = {(s.index, s.epoch): s.completion for s in after.values()}
        assert texts == {(s.index, s.epoch): s.completion for s in client.jobs.samples(undisturbed)}
        assert len({texts[0, epoch] for epoch in range(epochs)}) > 1
        results = client.jobs.results(job_id).conditions
        assert results == client.jobs.results(undisturbed).conditions
        metrics = results["baseline"].metrics
        assert {"pass@1,numeric", "pass@2,numeric", "pass@4,numeric", "maj@4,numeric"} < set(metrics)
    assert service.stop() == 0
    check_sessions(service.home, list(after.values()), tokenizer_of(model))


SAMPLED = {"max_tokens": 64, "temperature": 0.8, "top_p": 0.95, "seed": 11}
