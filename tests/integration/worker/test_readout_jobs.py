"""Jobs with readouts: of every kind of sample, equal to the products of the stored rows, and in results."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from actograph.client import open_folder
from actograph.contract.interventions import NewVector
from actograph.contract.job_specs import ReplaySpec
from actograph.contract.resources import JobResults, JobStatus, Sample
from storage.analyses import replays
from storage.jobs import jobs
from storage.results import summary
from storage.sessions import vectors
from storage.sessions.reader import SessionReader
from tests.integration.worker import test_batch_members as batch
from tests.integration.worker.test_replays import identified
from tests.support.additions import TASK, additions
from tests.support.submitting import insert

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

TEXT = "Tom has 34 books and Mia has 57 books. How many do they have in total?"
HOOK, MODEL = "resid_post.1", "tiny-qwen3"


class Stored:
    """A stored vector of a bench, and the values that it must give."""

    def __init__(
        self,
        bench: "Bench",
        name: str = "v",
        *,
        hook: str = HOOK,
        seed: int = 0,
        vector: Any = None,
        **more: Any,
    ) -> None:
        width = bench.engine.width_of(hook)
        self.vector = np.random.default_rng(seed).normal(size=width) if vector is None else vector
        self.vector = np.asarray(self.vector, np.float32)
        new = NewVector(name=name, hook=hook, vector=self.vector.tolist(), **more)
        with bench.database.write() as session:
            self.id = vectors.insert(session, new).id

    def due(self, rows: Any, bias: float = 0.0) -> Any:
        return (rows.astype(np.float64) @ self.vector.astype(np.float64) + bias).astype(np.float32)


def run(
    bench: "Bench", rows: Sequence[dict[str, str]] | None = None, **changes: Any
) -> list[tuple[Sample, Any]]:
    """The samples of a job, each with its session."""
    job = bench.submit(list(rows) if rows else None, **changes)
    bench.drain().look()
    assert bench.status(job) is JobStatus.COMPLETED
    found = []
    for sample in bench.samples(job):
        assert sample.error is None, sample.error
        SessionReader(bench.store, str(sample.session_id)).verify()
        folder = bench.settings.home / "artifacts" / "sessions" / str(sample.session_id)
        found.append((sample, open_folder(folder)))
    return found


def results(bench: "Bench", job_id: str, fires_above: float = 0.0) -> JobResults:
    with bench.database.snapshot() as session:
        return summary.of_job(session, jobs.get(session, job_id), fires_above=fires_above)


def check(sample: Sample, session: Any, name: str, due: Any) -> None:
    """Stored values are those of the stored rows, and the sample has them in short."""
    values = session[f"readout:{name}"][:]
    assert values.dtype == np.float32 and values.shape == (len(due), 1)
    np.testing.assert_array_equal(values[:, 0], due)
    tokens = session.tokens_of(f"readout:{name}")
    assert sample.prompt_tokens is not None
    generated = tokens >= sample.prompt_tokens
    own = values[generated, 0] if generated.any() else values[:, 0]
    short = sample.readouts[name]
    assert (short.tokens, short.generated) == (len(own), bool(generated.any()))
    assert (short.max, short.min, short.last) == (own.max(), own.min(), own[-1])
    np.testing.assert_allclose(short.mean, own.mean(dtype=np.float64))
    assert values[list(tokens).index(short.max_token), 0] == short.max


def test_values_of_choices_conditions_and_positions(bench: "Bench", subtests: pytest.Subtests) -> None:
    one, other = Stored(bench), Stored(bench, "w", hook="resid_post.0", seed=1, metadata={"bias": "-2.5"})
    readouts = [{"vector": one.id, "bias": 1.5}, {"vector": other.id, "name": "second"}]
    steered = [{"hook": "resid_post.0", "op": "scale", "coefficient": -2.0}]
    more: dict[str, Any] = {
        "all": {},
        "generated": {"positions": "generated"},
        "held back": {"positions": "generated[-3:]"},
        "last": {"positions": "last"},
        "numbers": {"positions": [0, 2, -1]},
        "prefill": {"mode": "prefill"},
        "float16": {"dtype": "float16", "features": {"first": 3}},
    }
    for name, changes in more.items():
        with subtests.test(name):
            capture = {"hooks": ["resid_post.0", HOOK], "readouts": readouts} | changes
            conditions = [{"name": "plain"}, {"name": "steered", "interventions": steered}]
            inputs = [{"prompt": TEXT}, {"prompt": "The cat"}]
            found = run(bench, inputs=inputs, capture=capture, conditions=conditions, epochs=2)
            assert len(found) == 8
            for sample, session in found:
                if name == "float16":  # of the hooks alone
                    assert session[HOOK].shape[1] == 3
                    assert session["readout:v"].stored_dtype == "F32"
                    continue
                check(sample, session, "v", one.due(session[HOOK][:], 1.5))
                check(sample, session, "second", other.due(session["resid_post.0"][:], -2.5))


def test_values_of_every_turn(bench: "Bench", subtests: pytest.Subtests) -> None:
    one = Stored(bench)
    for positions in ("all", "answer", "generated[-3:]", "last"):
        with subtests.test(positions):
            capture = {"hooks": [HOOK], "readouts": [{"vector": one.id}], "positions": positions}
            spec = {"task": TASK, "tools": "calculator", "sampling": {"max_tokens": 64}, "capture": capture}
            found = run(bench, additions((14, 23), (57, 68)), **spec)
            assert max(len(session._manifest().turns) for _, session in found) > 1
            for sample, session in found:
                check(sample, session, "v", one.due(session[HOOK][:]))


def test_readouts_alone_and_their_manifest(bench: "Bench") -> None:
    """The hook is the vector's own; points of the last tokens alone have values there alone."""
    one, last = Stored(bench), Stored(bench, "last", hook="logits")
    capture = {"readouts": [{"vector": one.id}, {"vector": last.id, "bias": 3}]}
    ((sample, session),) = run(bench, inputs=[{"prompt": TEXT}], capture=capture)
    assert set(session) == {"readout:v", "readout:last"}
    assert sample.prompt_tokens is not None and sample.generated_tokens is not None
    assert len(session["readout:v"]) == sample.prompt_tokens + sample.generated_tokens - 1
    assert session.tokens_of("readout:last")[0] == sample.prompt_tokens - 1
    manifest = SessionReader(bench.store, str(sample.session_id)).manifest
    applied = manifest.readouts["readout:last"]
    assert (applied.vector_id, applied.vector, applied.hook, applied.bias) == (last.id, "last", "logits", 3)
    assert manifest.locations["readout:v"].endswith("layers.1.output")


def test_a_planted_readout_fires_at_its_token_and_nowhere_else(bench: "Bench") -> None:
    embeddings = bench.engine.model.hf.get_input_embeddings().weight.detach().double().numpy()
    token = bench.tokenizer(TEXT)["input_ids"][-2]
    vector, bias = detector(embeddings, token)
    one = Stored(bench, hook="embed", vector=vector)
    inputs = [{"prompt": TEXT}, {"prompt": "The cat"}, {"prompt": f"{TEXT} {TEXT}"}]
    fired = 0
    for _, session in run(bench, inputs=inputs, capture={"readouts": [{"vector": one.id, "bias": bias}]}):
        values = session["readout:v"][:, 0]
        due = session.token_ids[: len(values)] == token
        assert np.array_equal(values > 0, due)
        fired += int(due.sum())
    assert fired >= 3


def detector(embeddings: Any, token: int) -> tuple[Any, float]:
    """A vector and a bias with a positive value for the embedding of one token alone."""
    centred = embeddings - embeddings.mean(axis=0)
    spread = centred.T @ centred + 1e-9 * np.eye(centred.shape[1])
    vector = np.linalg.solve(spread, centred[token])
    values = np.sort(embeddings @ vector)
    assert values[-1] == (embeddings @ vector)[token] and values[-1] - values[-2] > 1e-3
    return vector, float(-(values[-1] + values[-2]) / 2)


def test_results_say_how_often_a_readout_fired_on_right_and_on_wrong_answers(bench: "Bench") -> None:
    one = Stored(bench)
    job = bench.submit(
        additions((14, 23), (57, 68), (88, 79), (61, 19)),
        task=TASK,
        sampling={"max_tokens": 24},
        conditions=[{"name": "plain"}, {"name": "hot", "sampling": {"temperature": 3.0}}],
        capture={"readouts": [{"vector": one.id}]},
    )
    bench.drain().look()
    samples = bench.samples(job)
    for threshold in (0.0, float(np.median([sample.readouts["v"].max for sample in samples]))):
        found = results(bench, job, threshold)
        for condition, shown in found.conditions.items():
            of_it = [sample for sample in samples if sample.condition == condition]
            totals = shown.readouts["v"]
            assert totals.fires_above == threshold
            for is_right, own in ((True, totals.right), (False, totals.wrong)):
                due = [s for s in of_it if (next(iter(s.scores.values())).value == 1) is is_right]
                maxima = [sample.readouts["v"].max for sample in due]
                assert (own.samples, own.fired) == (len(due), sum(one > threshold for one in maxima))
                assert own.max == (pytest.approx(np.mean(maxima)) if due else None)
            assert totals.unscored.samples == 0
        assert sum(one.readouts["v"].wrong.samples for one in found.conditions.values()) > 0
        assert "Fired" in str(found)


def test_a_vector_that_is_gone_or_does_not_fit_fails_the_job_with_the_reason(bench: "Bench") -> None:
    one = Stored(bench)
    gone, wide = (
        {"inputs": [{"prompt": "a"}], "capture": {"readouts": [readout]}}
        for readout in ({"vector": "vec_" + "0" * 32}, {"vector": one.id, "hook": "logits"})
    )
    for spec, reason in (
        (gone, "there is no vector vec_00000000000000000000000000000000; it was deleted after"),
        (wide, "(v) has 96 numbers, logits is 577 wide"),
    ):
        job = bench.submit(**spec)
        bench.drain().look()
        assert bench.status(job) is JobStatus.FAILED
        with bench.database.read() as session:
            assert reason in str((jobs.get(session, job).error or {}).get("message"))


def test_a_sample_ends_at_the_token_where_a_planted_readout_fires(
    bench: "Bench", subtests: pytest.Subtests
) -> None:
    """The text ends with it, whatever is in the prompt, in every condition; a replay has the same values."""
    inputs = [{"prompt": TEXT}, {"prompt": "Mia has 5 apples and Tom"}]
    spec: dict[str, Any] = {"inputs": inputs, "sampling": {"max_tokens": 16, "temperature": 1.0, "seed": 3}}
    plain = run(bench, capture={"hooks": ["embed"]}, epochs=2, **spec)
    embeddings = bench.engine.model.hf.get_input_embeddings().weight.detach().double().numpy()
    first_prompt = plain[0][0].prompt_tokens or 0
    answers = [session.token_ids[sample.prompt_tokens :].tolist() for sample, session in plain]
    token = answers[0][5]
    vector, bias = detector(embeddings, token)
    one = Stored(bench, hook="embed", vector=vector, metadata={"bias": repr(bias)})
    for positions in ("all", "generated"):
        with subtests.test(positions):
            capture = {"readouts": [{"vector": one.id, "stop_above": 0}], "positions": positions}
            stopped = run(bench, capture=capture, epochs=2, **spec)
            for (sample, session), answer, (whole, _) in zip(stopped, answers, plain, strict=True):
                values, tokens = session["readout:v"][:, 0], session.tokens_of("readout:v")
                assert np.array_equal(values > 0, session.token_ids[tokens] == token)
                ids = session.token_ids[sample.prompt_tokens :].tolist()
                short = sample.readouts["v"]
                manifest = SessionReader(bench.store, str(sample.session_id)).manifest
                assert manifest.finish_reason == sample.finish_reason
                if token not in answer[:-1]:
                    assert ids == answer and sample.finish_reason == whole.finish_reason
                    assert not short.stopped and short.max < 0
                    continue
                place = answer.index(token)
                assert sample.finish_reason == "readout" and short.stopped
                assert ids == answer[: place + 2], "the token that was chosen next was never read"
                assert tokens[-1] == short.max_token == (sample.prompt_tokens or 0) + place
                text = bench.tokenizer.decode(answer[: place + 1], skip_special_tokens=True)
                assert sample.completion == text
                assert str(whole.completion).startswith(text)
            assert stopped[0][0].finish_reason == "readout"
    assert first_prompt > 0


def replayed(bench: "Bench", sample: Sample, capture: dict[str, Any]) -> Sample:
    """The sample of a replay of one sample."""
    sessions = {"ids": [sample.session_id]}
    body = {"kind": "replay", "model": MODEL, "sessions": sessions, "capture": capture}
    with bench.database.read() as index:
        found = replays.found(index, [str(sample.session_id)])
    job = insert(bench.database, ReplaySpec.model_validate(body), list(replays.samples_of(found)))
    bench.drain().look()
    (again,) = bench.samples(job)
    return again


def test_a_replay_of_a_stopped_sample_has_its_values(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    identified(bench, monkeypatch)
    one, late = Stored(bench), Stored(bench, "w", seed=1)
    ((sample, session),) = run(
        bench,
        inputs=[{"prompt": TEXT}],
        capture={"hooks": [HOOK], "readouts": [{"vector": one.id, "stop_above": -1e9}]},
    )
    assert (sample.finish_reason, sample.generated_tokens) == ("readout", 2)
    capture = {"hooks": [HOOK], "readouts": [{"vector": one.id}, {"vector": late.id}]}
    again = replayed(bench, sample, capture)
    assert again.error is None, again.error
    folder = bench.settings.home / "artifacts" / "sessions" / str(again.session_id)
    other = open_folder(folder)
    np.testing.assert_allclose(other["readout:v"][:], session["readout:v"][:], rtol=1e-4, atol=1e-4)
    check(again, other, "w", late.due(other[HOOK][:]))
    assert again.completion == sample.completion
    assert not again.readouts["v"].stopped and again.readouts["v"].generated
    manifest = SessionReader(bench.store, str(again.session_id)).manifest
    assert manifest.tensors[HOOK].compared is not None and manifest.tensors["readout:v"].compared is None


def test_an_intervention_waits_for_a_readout(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    """In one condition of two; the manifest says for what, and a replay is refused with the reason."""
    identified(bench, monkeypatch)
    one = Stored(bench)
    capture = {"hooks": [HOOK], "readouts": [{"vector": one.id, "name": "alarm"}]}
    spec: dict[str, Any] = {"inputs": [{"prompt": TEXT}], "capture": capture, "sampling": {"max_tokens": 12}}
    ((plain, session),) = run(bench, **spec)
    first = plain.prompt_tokens or 0
    values = session["readout:alarm"][first:, 0]
    place = int(np.argmax(values > np.median(values)))
    edit = {"hook": "resid_post.0", "op": "scale", "coefficient": -1.5}
    after = {"readout": "alarm", "above": float(np.median(values))}
    conditions = [
        {"name": "waits", "interventions": [edit | {"after": after}]},
        {"name": "placed", "interventions": [edit | {"positions": {"start": first + place + 1}}]},
    ]
    (waits, own), (placed, due) = run(bench, conditions=conditions, **spec)
    assert waits.completion == placed.completion
    np.testing.assert_allclose(own[HOOK][:], due[HOOK][:], atol=1e-3, rtol=1e-4)
    assert not np.allclose(own[HOOK][first + place + 1], session[HOOK][first + place + 1], atol=1e-2)
    (applied,) = SessionReader(bench.store, str(waits.session_id)).manifest.interventions
    assert applied.after is not None and applied.after.readout == "alarm"
    again = replayed(bench, waits, {"hooks": [HOOK]})
    assert again.error is not None
    assert "recorded under interventions that began when a readout crossed" in again.error.message
    assert replayed(bench, placed, {"hooks": [HOOK]}).error is None


def test_members_of_a_batch_are_what_they_are_alone(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    """Chats, and the lines of one batch, that differ in one thing of their readouts each."""
    one, other = Stored(bench), Stored(bench, "w", seed=1)
    ((_, session),) = run(
        bench, inputs=[{"prompt": batch.PROMPT}], capture={"readouts": [{"vector": one.id}]}
    )
    middle = float(np.median(session["readout:v"][:]))
    plain = {"vector": one.id}
    edit = {"hook": "resid_post.0", "op": "scale", "coefficient": -1.5}

    def line(*readouts: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {"capture": {"hooks": [HOOK], "readouts": list(readouts)}} | more

    lines: dict[str, dict[str, Any]] = {
        "as it is": line(plain),
        "vector": line({"vector": other.id}),
        "two": line(plain, {"vector": other.id}),
        "name": line(plain | {"name": "other"}),
        "bias": line(plain | {"bias": 7}),
        "stop": line(plain | {"stop_above": middle}),
        "stop below": line(plain | {"stop_below": middle}),
        "never": line(plain | {"stop_above": 1e9}),
        "by the second": line(plain, {"vector": other.id, "stop_above": -1e9}),
        "edit": line(plain, interventions=[edit]),
        "edit after": line(plain, interventions=[edit | {"after": {"readout": "v", "above": middle}}]),
        "none": {"capture": None},
    }
    monkeypatch.setattr(batch, "LINES", lines)
    together = [batch.submit_chat(bench, name) for name in lines]
    assert batch.run_all(bench, *together) >= 6
    job = batch.submit_lines(bench, list(lines))
    batch.run_all(bench, job)
    ended = set()
    for name, chat, sample in zip(lines, together, bench.samples(job), strict=True):
        alone = batch.submit_chat(bench, name)
        assert batch.run_all(bench, alone) == 1
        (due,) = bench.samples(alone)
        batch.assert_same(bench, name, bench.samples(chat)[0], due)
        for found in (bench.samples(chat)[0], sample):
            assert (found.completion, found.finish_reason) == (due.completion, due.finish_reason), name
            assert found.readouts.keys() == due.readouts.keys()
            for readout, values in due.readouts.items():
                expected = values.model_dump()
                assert found.readouts[readout].model_dump() == pytest.approx(expected, abs=1e-3, rel=1e-4)
        ended.add((due.finish_reason, due.completion))
    assert len(ended) > 3 and "readout" in {reason for reason, _ in ended}
