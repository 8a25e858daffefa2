"""The drain from a claim to its commit: results, failures, turns, cancel, stop."""

import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

from actograph.contract.resources import JobStatus, SampleStatus
from storage.index import events, tallies
from storage.index.counters import Counter
from storage.jobs import jobs
from storage.queue import claim, leases, view
from storage.results import summary
from storage.sessions.writer import SessionReader
from tests.support import leasing
from tests.support.submitting import insert_chat
from worker.signals.stop_signal import StopSignal

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

LAYERS = 2
CAPTURE = {"points": ["attn_in", "mlp_in"], "layers": "all"}


def test_a_common_beginning_of_prompts_is_computed_once(bench: "Bench") -> None:
    beginning = "one and two are three, " * 12
    inputs = [{"prompt": beginning + end} for end in ("four", "five and six", "7", "and so on")]
    cached = len(bench.engine.model.tokenizer(beginning)["input_ids"]) // 64 * 64
    job_id = bench.submit(inputs=inputs, capture=CAPTURE)
    bench.drain().look()
    with bench.database.read() as session:
        log = {event.event: event.data for event in events.after(session, job_id, 0)}
    # the first prompt may be read before the second one comes
    assert log["job.completed"]["cached_tokens"] in (3 * cached, 4 * cached)
    assert cached


def test_jobs_of_a_run_have_its_memory_in_their_logs_and_chats_have_not(bench: "Bench") -> None:
    job_ids = [bench.submit(inputs=[{"prompt": text}], capture=CAPTURE) for text in ("one", "two")]
    chat = insert_chat(bench.database, "tiny-qwen3")
    drain = bench.drain()
    while drain.look():
        pass
    with bench.database.read() as session:
        logs = [events.after(session, job_id, 0) for job_id in (*job_ids, chat)]
    for log in logs[:2]:
        (ended,) = [event for event in log if event.event == "run.ended"]
        assert ended.data["worker_id"]
        memory = ended.data["memory"]
        assert memory.keys() == {"before_bytes", "after_bytes", "peak_bytes"}
        assert 0 < memory["before_bytes"] <= memory["peak_bytes"] >= memory["after_bytes"] > 0
    assert "job.completed" in {event.event for event in logs[2]}
    assert "run.ended" not in {event.event for event in logs[2]}


def test_an_evaluation_ends_with_scores_and_a_session_for_every_sample(bench: "Bench") -> None:
    job_id = bench.submit(
        capture=CAPTURE, conditions=[{"name": "baseline"}, {"name": "b", "suffix": "Think."}]
    )
    bench.drain().look()
    assert bench.status(job_id) is JobStatus.COMPLETED
    done = bench.samples(job_id)
    assert len(done) == 10
    for sample in done:
        assert sample.status is SampleStatus.COMPLETED
        assert sample.losses == 0
        assert set(sample.scores) == {
            "exact_match,strict-match",
            "exact_match,flexible-extract",
            "exact_match,numeric",
        }
        assert sample.session_id is not None
        assert sample.prompt_tokens is not None and sample.generated_tokens is not None
        reader = SessionReader(bench.store, sample.session_id)
        reader.verify()
        rows = sample.prompt_tokens + sample.generated_tokens - 1
        assert len(reader.token_ids()) == rows + 1
        for layer in range(LAYERS):
            for point in ("attn_in", "mlp_in"):
                assert reader.rows(f"{point}.{layer}", 0, rows).shape == (rows, 96)
    second = [s for s in done if s.condition == "b"]
    assert all(s.prompt is not None and "Think." in s.prompt for s in second)
    with bench.database.snapshot() as session:
        results = summary.of_job(session, jobs.get(session, job_id))
    assert {c.samples for c in results.conditions.values()} == {5}
    assert bench.stored_sessions() == bench.indexed_sessions()
    assert len(bench.indexed_sessions()) == 10


def test_stored_rows_equal_a_forward_pass_over_the_stored_tokens(bench: "Bench") -> None:
    job_id = bench.submit(capture={"points": ["resid_post"], "layers": "all"})
    bench.drain().look()
    for sample in bench.samples(job_id):
        assert sample.session_id is not None
        reader = SessionReader(bench.store, sample.session_id)
        ids = torch.tensor([list(reader.token_ids())[:-1]])
        with torch.inference_mode():
            states = bench.engine.model.hf(input_ids=ids, output_hidden_states=True).hidden_states
        stored = reader.rows("resid_post.0", 0, ids.shape[1])
        rows = torch.frombuffer(bytearray(stored.data), dtype=torch.float32).view(stored.shape)
        assert torch.allclose(rows, states[1][0], atol=1e-4)


def test_a_capture_job_takes_prompts_and_conversations(bench: "Bench") -> None:
    job_id = bench.submit(
        inputs=[{"prompt": "one and two"}, {"messages": [{"role": "user", "content": "12+13?"}]}],
        capture={"hooks": ["embed", "logits", "final_norm"]},
    )
    bench.drain().look()
    plain, chat = bench.samples(job_id)
    assert plain.prompt == "one and two"
    assert chat.prompt is not None and chat.prompt.startswith("<|im_start|>user")
    assert plain.scores == {}
    assert plain.session_id is not None
    manifest = SessionReader(bench.store, plain.session_id).manifest
    assert manifest.tensors["logits"].first_row == manifest.prompt_tokens - 1
    assert manifest.tensors["logits"].shape[0] == manifest.generated_tokens
    assert manifest.tensors["embed"].shape[0] == manifest.num_tokens - 1


def test_a_prompt_beyond_the_context_fails_alone_with_both_numbers(bench: "Bench") -> None:
    rows = [*bench.problems[:2], {"question": "word " * 3000, "answer": "#### 1"}]
    job_id = bench.submit(rows, capture=CAPTURE)
    bench.drain().look()
    first, second, third = bench.samples(job_id)
    assert (first.status, second.status) == (SampleStatus.COMPLETED, SampleStatus.COMPLETED)
    assert third.status is SampleStatus.FAILED
    assert third.error is not None
    assert third.error.type == "context_length_exceeded"
    assert "2048" in third.error.message
    assert third.session_id is None
    assert bench.status(job_id) is JobStatus.COMPLETED


def test_what_was_done_is_counted_once_by_the_workers_that_did_it(bench: "Bench") -> None:
    rows = [*bench.problems[:3], {"question": "word " * 3000, "answer": "#### 1"}]
    job_id = bench.submit(rows, capture=CAPTURE)
    bench.drain(slots=2).look()
    done = [s for s in bench.samples(job_id) if s.status is SampleStatus.COMPLETED]
    with bench.database.read() as session:
        found = tallies.totals(session)
        stored = view.gauges(session, [])
    assert found.pop(Counter("busy_seconds")) > 0
    assert found == {
        Counter("samples", "evaluation", "completed"): 3,
        Counter("samples", "evaluation", "failed"): 1,
        Counter("prompt_tokens", "evaluation"): sum(s.prompt_tokens or 0 for s in done),
        Counter("generated_tokens", "evaluation"): sum(s.generated_tokens or 0 for s in done),
        Counter("sessions_written", "evaluation"): 3,
        Counter("session_rows_written", "evaluation"): stored["stored_session_rows"],
        Counter("session_bytes_written", "evaluation"): stored["stored_session_bytes"],
    }


def test_a_hook_that_the_model_lacks_fails_the_job_with_the_reason(bench: "Bench") -> None:
    job_id = bench.submit(capture={"hooks": ["resid_post.7"]})
    bench.drain().look()
    with bench.database.read() as session:
        job = view.job(session, jobs.get(session, job_id))
    assert job.status is JobStatus.FAILED
    assert job.error is not None and job.error.type == "unknown_hook"
    assert "layers 0 to 1" in job.error.message
    assert {s.status for s in bench.samples(job_id)} == {SampleStatus.CANCELLED}


def test_values_that_are_not_finite_fail_the_sample(bench: "Bench") -> None:
    norm = bench.engine.model.hf.get_submodule("model.layers.1.input_layernorm")
    poison = norm.register_forward_hook(lambda m, a, out: out + float("nan"))
    try:
        job_id = bench.submit(capture=CAPTURE)
        bench.drain().look()
    finally:
        poison.remove()
    assert {s.status for s in bench.samples(job_id)} == {SampleStatus.FAILED}
    assert all(s.error and "not numbers" in s.error.message for s in bench.samples(job_id))
    assert bench.stored_sessions() == set()


LONG = {"max_tokens": 1500}


def test_cancel_is_seen_between_decode_steps_and_leaves_nothing_behind(
    bench: "Bench", slow: list[float]
) -> None:
    job_id = bench.submit(capture=CAPTURE, inputs=[{"prompt": "one two"}] * 4, sampling=LONG)

    def cancel() -> None:
        with bench.database.write() as session:
            jobs.cancel(session, job_id)

    bench.run_until(job_id, cancel)
    assert len(slow) < LONG["max_tokens"], "it went on to the end"
    assert bench.status(job_id) is JobStatus.CANCELLED
    assert {s.status for s in bench.samples(job_id)} == {SampleStatus.CANCELLED}
    assert bench.stored_sessions() == set()
    assert not list((bench.settings.home / "artifacts").rglob("*staging*"))


def test_a_stopping_worker_keeps_what_ended_and_another_finishes_the_rest(
    bench: "Bench", slow: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sample ends at a stop string, the second goes on."""
    monkeypatch.setattr("worker.drain.held_leases.STOP_GRACE_SECONDS", 0.2)
    drawn = {"temperature": 1.0, "seed": 3}
    plain = bench.submit(inputs=[{"prompt": "one two"}], capture=None, sampling={"max_tokens": 12, **drawn})
    bench.drain().look()
    slow.clear()
    job_id = bench.submit(
        inputs=[{"prompt": "one two"}, {"prompt": "three four"}],
        capture=CAPTURE,
        sampling=LONG | {"stop": [bench.samples(plain)[0].completion], **drawn},
    )

    def stop() -> None:
        while len(slow) < 40:  # by then the first one has ended
            time.sleep(0.01)
        bench.stop.set()

    bench.run_until(job_id, stop)
    first, second = bench.samples(job_id)
    assert first.status is SampleStatus.COMPLETED and first.session_id is not None
    SessionReader(bench.store, first.session_id).verify()
    assert bench.stored_sessions() == bench.indexed_sessions() == {first.session_id}
    assert (second.status, second.losses) == (SampleStatus.PENDING, 0)
    bench.stop = StopSignal()
    with bench.database.write() as session:
        row = jobs.get(session, job_id)
        row.spec = row.spec | {"sampling": row.spec["sampling"] | {"max_tokens": 5}}
    bench.drain().look()
    assert bench.status(job_id) is JobStatus.COMPLETED


@pytest.mark.usefixtures("slow")
def test_a_worker_that_was_thought_dead_commits_nothing_and_leaves_no_files(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = bench.submit(capture=CAPTURE, inputs=[{"prompt": "one two"}] * 4)
    claimed, taken_over = claim.claim, []

    def claim_and_lose(*given: Any) -> claim.Claim | None:
        """Claim, and let another worker take over before the samples run."""
        found = claimed(*given)
        if found is not None and found.samples:
            with bench.database.write() as session:
                leases.take_back(session, [given[1].worker_id])
                taken_over.extend(leasing.claim(session, job_id, worker_id="wrk_b", count=4))
        return found

    monkeypatch.setattr(claim, "claim", claim_and_lose)
    bench.drain().look()
    assert len(taken_over) == 4
    assert {s.status for s in bench.samples(job_id)} == {SampleStatus.LEASED}
    assert bench.stored_sessions() == set()
    with bench.database.read() as session:
        assert jobs.get(session, job_id).completed == 0


def test_fewshot_examples_stand_before_the_question(bench: "Bench") -> None:
    job_id = bench.submit(num_fewshot=2, apply_chat_template=False)
    bench.drain().look()
    for sample in bench.samples(job_id):
        assert sample.prompt is not None
        assert sample.prompt.count("Question:") == 3
        assert sample.prompt.count(sample.input["question"]) == 1


@pytest.mark.soak
def test_two_hundred_jobs_in_a_row_keep_memory_flat(bench: "Bench") -> None:
    from worker.engine.model.memory import memory_snapshot

    drain = bench.drain()
    used = []
    for number in range(200):
        bench.submit(bench.problems[:1], capture={"points": ["resid_post"], "layers": "all"})
        drain.look()
        if number in (49, 199):
            used.append(memory_snapshot()["rss_bytes"])
    assert used[1] - used[0] < 30_000_000
    assert len(bench.indexed_sessions()) == 200
