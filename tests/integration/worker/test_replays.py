"""Replays: stored sessions are read again, for other hooks, and compared with what they hold."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from actograph.client.stored_session import open_folder
from actograph.contract.interventions import NewVector
from actograph.contract.job_specs import ReplaySpec
from actograph.contract.models import ModelIdentity
from actograph.contract.resources import JobResults, JobStatus, Sample, SampleStatus
from actograph.contract.row_selection import stored_rows
from actograph.contract.specs import CaptureSpec
from storage.analyses import queries, replays
from storage.jobs import jobs
from storage.results import labels, summary
from storage.sessions import changes, sessions, vectors
from storage.sessions.manifest import SessionManifest
from storage.sessions.reader import SessionReader
from tests.integration.worker.test_batch_members import CAPTURE, LINES, line, submit_lines
from tests.integration.worker.test_sae_jobs import Stored
from tests.support import leasing
from tests.support.additions import TASK, additions
from tests.support.plain_forward import plain_rows
from tests.support.submitting import insert, insert_chat

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

MODEL = "tiny-qwen3"
PROBLEMS = additions((14, 23), (57, 68), (90, 11))
HOOKS = ["resid_post.0", "mlp_in.1", "logits"]
TEXT = "Tom has 34 books and Mia has 57 books. How many?"


class Replays:
    """Jobs on a bench, and replays of their sessions."""

    def __init__(self, bench: "Bench") -> None:
        self.bench = bench
        self.folder = bench.settings.home / "artifacts" / "sessions"

    def run(self, **job: Any) -> str:
        job_id = self.bench.submit(**job)
        self.bench.drain().look()
        assert self.bench.status(job_id) is JobStatus.COMPLETED
        return job_id

    def submit(self, source: str | dict[str, Any], **changes: Any) -> str:
        """As the API expands it."""
        query = {"jobs": [source]} if isinstance(source, str) else source
        body = {"kind": "replay", "model": MODEL, "sessions": query} | changes
        spec = ReplaySpec.model_validate(body)
        with self.bench.database.read() as session:
            found = replays.found(session, queries.session_ids(session, spec.sessions))
        return insert(self.bench.database, spec, replays.samples_of(found))

    def replay(self, source: str | dict[str, Any], **changes: Any) -> list[Sample]:
        """The samples, each of which is completed."""
        made = self.bench.samples(self.drained(self.submit(source, **changes)))
        assert made and all(one.status is SampleStatus.COMPLETED for one in made), [one.error for one in made]
        return made

    def drained(self, job_id: str) -> str:
        self.bench.drain().look()
        return job_id

    def sessions(self, samples: Sequence[Sample]) -> list[tuple[Any, SessionManifest]]:
        """Each stored session, verified, with its manifest."""
        found = []
        for sample in samples:
            assert sample.session_id is not None, sample.error
            reader = SessionReader(self.bench.store, sample.session_id)
            reader.verify()
            found.append((open_folder(self.folder / sample.session_id), reader.manifest))
        return found

    def results(self, job_id: str) -> JobResults:
        with self.bench.database.snapshot() as session:
            return summary.of_job(session, jobs.get(session, job_id))


@pytest.fixture
def place(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> Replays:
    identified(bench, monkeypatch)
    return Replays(bench)


def identified(bench: "Bench", monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Give the model an identity, as a load does."""
    names = ("model", "source", "weights_sha256", "dtype", "tokenizer_sha256")
    identity = ModelIdentity(**dict.fromkeys(names, "tiny-qwen3") | changes)
    changed = bench.engine.structure.model_copy(update={"identity": identity})
    monkeypatch.setattr(bench.engine, "structure", changed)


def sources(place: Replays, count: int = 2, **changes: Any) -> tuple[str, list[tuple[Any, SessionManifest]]]:
    """An evaluation with tools, whose samples have two turns, and its sessions."""
    spec = {"task": TASK, "tools": "calculator", "sampling": {"max_tokens": 64}} | changes
    job_id = place.run(rows=PROBLEMS[:count], **spec)
    return job_id, place.sessions(place.bench.samples(job_id))


def test_a_replay_has_the_tokens_turns_and_rows_of_its_source(place: Replays) -> None:
    """Rows that both have are equal but for rounding; those of other hooks are a plain forward's."""
    job_id, stored = sources(place, capture={"hooks": HOOKS[:2]})
    assert all(len(manifest.turns) == 2 for _, manifest in stored)
    other = ["attn_out.0", "mlp_in.1", "logits"]
    made = place.replay(job_id, capture={"hooks": other})
    for sample, source, (folder, manifest), (was, before) in zip(
        made, place.bench.samples(job_id), place.sessions(made), stored, strict=True
    ):
        assert folder.token_ids.tolist() == was.token_ids.tolist()
        same = (
            "turns", "segments", "prompt_tokens", "generated_tokens", "seed", "finish_reason", "token_texts",
            "identity_sha256", "sample_index", "condition", "epoch",
        )  # fmt: skip
        for name in same:
            assert getattr(manifest, name) == getattr(before, name), name
        assert manifest.source_session == before.session_id
        for name in ("prompt", "completion", "scores", "tool_use", "messages", "finish_reason", "seed"):
            assert getattr(sample, name) == getattr(source, name), name
        assert sample.prompt_tokens == source.prompt_tokens
        assert sample.generated_tokens == source.generated_tokens
        tokens = was.tokens_of("mlp_in.1").tolist()
        assert folder.tokens_of("mlp_in.1").tolist() == tokens == folder.tokens_of("logits").tolist()
        np.testing.assert_allclose(folder["mlp_in.1"][:], was["mlp_in.1"][:], atol=1e-4)
        compared = manifest.tensors["mlp_in.1"].compared
        assert compared is not None and compared.rows == len(tokens)
        assert 0 <= compared.difference <= compared.tolerance * compared.scale
        assert compared.tolerance == 1e-4
        assert manifest.tensors["attn_out.0"].compared is None
        # each turn is a text of its own
        numbers: list[int] = []
        ids = folder.token_ids
        for turn in manifest.turns:
            kept = len(numbers[: turn.context or 0])
            numbers = [*numbers[: turn.context or 0], *range(turn.start, turn.stop)]
            due = plain_rows(place.bench.engine, ids[numbers].tolist(), other)
            for name in other:
                rows = dict(zip(folder.tokens_of(name).tolist(), folder[name][:], strict=True))
                for at, number in list(enumerate(numbers))[kept:-1]:
                    np.testing.assert_allclose(rows[number], due[name][at].numpy(), atol=2e-4)
    with place.bench.database.read() as session:
        found, _ = sessions.find(session, sessions.SessionFilter(source_session=stored[0][1].session_id))
        shown = sessions.resources_of(session, found)
    assert [one.id for one in shown] == [made[0].session_id]
    assert shown[0].source_session == stored[0][1].session_id
    assert shown[0].correct is (next(iter(made[0].scores.values())).value == 1.0)
    total = place.results(made[0].job_id)
    assert total.compared["mlp_in.1"].rows == sum(len(was.tokens_of("mlp_in.1")) for was, _ in stored)
    assert "mlp_in.1" in str(total)


def compared(place: Replays, samples: Sequence[Sample]) -> list[dict[str, int]]:
    """Of each replay: tensor -> number of compared rows."""
    return [
        {name: one.compared.rows for name, one in manifest.tensors.items() if one.compared is not None}
        for _, manifest in place.sessions(samples)
    ]


POSITIONS: list[Any] = [
    "all", "prompt", "generated", "last", "last_prompt", {"stride": 3}, {"start": 4, "stop": 90}, [0, 7, -1],
    ["tool_call", "tool_result"], "answer", "generated[1::3]", "generated[-5:]", "answer[-1]", "turn.0",
    "turn.1[:2]", "turn.-1[-4::2]", "tool_result[-2:]",
]  # fmt: skip


def test_positions_select_the_tokens_that_they_select_in_the_source(
    place: Replays, subtests: pytest.Subtests
) -> None:
    _, ((was, before),) = sources(place, 1, capture={"hooks": HOOKS[:2]})
    source = {"ids": [before.session_id]}
    replayed = [
        place.submit(source, capture={"hooks": HOOKS[:1], "positions": positions}) for positions in POSITIONS
    ]
    place.bench.drain().look()
    of_rows = was.tokens_of(HOOKS[0]).tolist()
    for positions, job_id in zip(POSITIONS, replayed, strict=True):
        with subtests.test(positions=positions):
            due = stored_rows(
                CaptureSpec.model_validate({"positions": positions}).positions,
                of_rows,
                prompt_tokens=before.prompt_tokens,
                ran=before.num_tokens - 1,
                segments=before.segments,
            )
            made = place.bench.samples(job_id)
            ((folder, _),) = place.sessions(made)
            assert due and folder.tokens_of(HOOKS[0]).tolist() == [of_rows[row] for row in due]
            assert compared(place, made) == [{HOOKS[0]: len(due)}]


def test_summaries_and_features_are_compared(place: Replays, subtests: pytest.Subtests) -> None:
    statistics = [f"resid_post.0.{one}" for one in ("mean", "variance", "min", "max", "rms")]
    counted = {"stats": {"threshold": 0.5, "tensors": False}}
    cases: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
        *(({"reduce": one}, {"reduce": one}, ["resid_post.0"]) for one in ("mean", "max", "last")),
        ({"reduce": "mean"}, {"reduce": "max"}, []),
        ({"reduce": "mean"}, {"reduce": "mean", "positions": "prompt"}, []),
        (counted, counted, statistics),
        ({}, {"features": {"first": 5}}, ["resid_post.0"]),
        ({"features": {"indices": [7, 3, 90]}}, {"features": {"indices": [3, 4]}}, ["resid_post.0"]),
        ({"features": {"first": 2}}, {"features": {"indices": [3, 4]}}, []),
        ({}, {"dtype": "float16"}, ["resid_post.0"]),
    ]
    base = {"hooks": HOOKS[:1]}
    inputs = [{"prompt": TEXT}]
    before = [place.bench.submit(inputs=inputs, capture=base | one) for one, _, _ in cases]
    place.bench.drain().look()
    after = [
        place.submit(job_id, capture=base | one) for job_id, (_, one, _) in zip(before, cases, strict=True)
    ]
    place.bench.drain().look()
    for (one, other, names), job_id in zip(cases, after, strict=True):
        with subtests.test(before=one, after=other):
            (found,) = compared(place, place.bench.samples(job_id))
            assert sorted(found) == sorted(names)


def test_sessions_under_interventions_are_read_under_them(place: Replays) -> None:
    """Every form of positions, over turns with tools; rows of the source show that the edits are the same."""
    numbers = [((i * 37) % 11 - 5) / 1.7 for i in range(96)]
    with place.bench.database.write() as session:
        kept = vectors.insert(session, NewVector(name="v", hook="resid_post.0", vector=numbers)).id
    add = {"hook": "resid_post.0", "op": "add", "coefficient": 2.0}
    conditions = [
        {"name": "plain"},
        *(
            {"name": f"c{at}", "interventions": [add | {"vector_id": kept, "positions": positions}]}
            for at, positions in enumerate(
                ["all", "prompt", "generated", "last_prompt", {"stride": 5}, [3, -2], "answer[0:3]", "turn.1"]
            )
        ),
    ]
    scale = {"hook": "mlp_out.1", "op": "scale", "coefficient": 0.5, "positions": {"start": 2}}
    job_id, stored = sources(
        place,
        1,
        capture={"hooks": ["resid_post.0", "resid_post.1"]},
        conditions=conditions,
        interventions=[scale],
    )
    made = place.replay(job_id, capture={"hooks": ["resid_post.1", "attn_out.1"]})
    assert [one.condition for one in made] == [one["name"] for one in conditions]
    for one, (was, before), (_, manifest) in zip(
        compared(place, made), stored, place.sessions(made), strict=True
    ):
        assert one == {"resid_post.1": len(was.tokens_of("resid_post.1"))}
        assert manifest.interventions == before.interventions and len(manifest.interventions) >= 1

    # a replay of a replay has no job with these interventions
    (sample,) = place.bench.samples(
        place.drained(place.submit({"ids": [str(made[1].session_id)]}, capture={"hooks": ["embed"]}))
    )
    assert sample.error is not None and f"; replay session {stored[1][1].session_id}" in sample.error.message
    with place.bench.database.write() as session:
        vectors.delete(session, kept)
    refused = place.bench.samples(place.drained(place.submit(job_id, capture={"hooks": ["embed"]})))
    assert [one.error is None for one in refused] == [one.condition == "plain" for one in refused]
    assert refused[1].error is not None and "cannot be made again" in refused[1].error.message


def test_a_damaged_row_fails_its_sample_alone(place: Replays) -> None:
    job_id, stored = sources(place, capture={"hooks": HOOKS[:2]})
    manifest = stored[0][1]
    reader = SessionReader(place.bench.store, manifest.session_id)
    piece = reader.layout("mlp_in.1").pieces[0]
    row, width = 40, manifest.tensors["mlp_in.1"].shape[1]
    file = place.folder / manifest.session_id / piece.file.key.rpartition("/")[2]
    data = bytearray(file.read_bytes())
    at = piece.offset + 4 * (row * width + 3)
    changed = np.frombuffer(data, dtype="<f4", count=1, offset=at)[0] + 0.5
    data[at : at + 4] = np.float32(changed).tobytes()
    file.write_bytes(data)
    for hooks, fails in ((["mlp_in.1"], True), (["resid_post.0"], False)):
        first, *others = place.bench.samples(place.drained(place.submit(job_id, capture={"hooks": hooks})))
        assert all(one.error is None for one in others)
        assert (first.error is not None) == fails
        if first.error is not None:
            assert first.error.type == "replay_differs" and first.session_id is None
            token = stored[0][0].tokens_of("mlp_in.1")[row]
            said = f"the row of token {token} differs from that of session {manifest.session_id} by 0.5"
            assert f"mlp_in.1: {said}" in first.error.message and "the tolerance is" in first.error.message
    assert len(place.replay(job_id, capture={"hooks": ["mlp_in.1"]}, tolerance=1.0)) == 2


def test_another_model_is_not_compared(
    place: Replays, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    edit = {"hook": "embed", "op": "scale", "coefficient": 2.0}
    job_id, _ = sources(
        place,
        capture={"hooks": HOOKS[:1]},
        conditions=[{"name": "plain"}, {"name": "scaled", "interventions": [edit]}],
    )
    identified(place.bench, monkeypatch, weights_sha256="others")
    plain, scaled, *_ = place.bench.samples(place.drained(place.submit(job_id, capture={"hooks": HOOKS[:1]})))
    assert plain.error is None and compared(place, [plain]) == [{}]
    assert place.results(plain.job_id).compared == {}
    assert scaled.error is not None and "mean nothing to another model" in scaled.error.message
    with subtests.test("of another tokenizer"), monkeypatch.context() as patch:
        patch.setattr("worker.drain.open_jobs.tokenizer_sha256", lambda tokenizer: "f" * 64)
        refused = place.bench.samples(place.drained(place.submit(job_id, capture={"hooks": HOOKS[:1]})))
        assert all(one.error and "another tokenizer" in one.error.message for one in refused)


def test_deleted_sessions_fail_alone_and_lost_samples_run_again(place: Replays) -> None:
    job_id, stored = sources(place, capture={"hooks": HOOKS[:1]})
    replay = place.submit(job_id, capture={"hooks": HOOKS[:1]})
    leasing.begin(place.bench.database, replay, 2, worker_id="wrk_lost")  # a worker that was killed
    with place.bench.database.write() as session:
        changes.delete(session, stored[1][1].session_id)
    leasing.lose(place.bench.database, "wrk_lost")
    kept, gone = place.bench.samples(place.drained(replay))
    assert kept.error is None and kept.losses == 1
    assert gone.error is not None and "was deleted after the job was submitted" in gone.error.message
    with place.bench.database.read() as session:
        ids = sessions.ids(session, sessions.SessionFilter(job_id=replay))
    assert ids == [kept.session_id]


def test_members_of_a_run_differ_in_one_thing_each(place: Replays) -> None:
    """Sources of all kinds, read in one run: each is compared with its own rows."""
    base: dict[str, Any] = {
        "inputs": [{"prompt": TEXT, "label": True, "group": "a"}],
        "capture": {"hooks": ["resid_post.1", "logits"]},
        "sampling": {"max_tokens": 12, "temperature": 0.9},
    }
    edit = {"hook": "resid_post.0", "op": "scale", "coefficient": 1.5, "positions": "generated"}
    variants: dict[str, dict[str, Any]] = {
        "plain": {},
        "several": {"epochs": 3},
        "one token": {"sampling": {"max_tokens": 1}},
        "only read": {"capture": base["capture"] | {"mode": "prefill"}, "sampling": {}},
        "cut": {
            "inputs": [{"prompt": "one two " * place.bench.engine.structure.context_length}],
            "capture": {"hooks": ["resid_post.1"], "mode": "prefill"},
            "truncate": True,
        },
        "steered": {"interventions": [edit]},
        "chosen tokens": {"capture": base["capture"] | {"positions": "generated[-2:]"}},
        "a chat": {"inputs": [{"messages": [{"role": "user", "content": TEXT}]}]},
    }
    found = {name: place.bench.samples(place.run(**base | one)) for name, one in variants.items()}
    found["tools"] = place.bench.samples(sources(place, capture={"hooks": ["resid_post.1"]})[0])
    of_all = [str(one.session_id) for samples in found.values() for one in samples]
    made = place.replay({"ids": of_all}, capture={"hooks": ["resid_post.1", "embed"]})
    by_source = {
        str(manifest.source_session): one
        for one, (_, manifest) in zip(made, place.sessions(made), strict=True)
    }
    assert by_source.keys() == set(of_all)
    for one, before, counts in zip(made, of_all, compared(place, made), strict=True):
        stored = SessionReader(place.bench.store, before).manifest.tensors["resid_post.1"]
        assert counts == {"resid_post.1": stored.shape[0]}, one.input
    siblings = [by_source[str(one.session_id)] for one in found["several"]]
    assert len({one.completion for one in siblings}) > 1

    # labels and columns carry over, also to a probe over the replays
    with place.bench.database.read() as session:
        query = ReplaySpec.model_validate(
            {"kind": "replay", "model": MODEL, "sessions": {"jobs": [made[0].job_id]}}
        ).sessions
        of_replay = queries.sources(session, query, "embed")
        known = labels.labels(session, of_replay, "correct")
        verdicts = {one.session_id: next(iter(one.scores.values())).value == 1.0 for one in found["tools"]}
        columns = labels.columns(session, of_replay)
    assert sorted(known.values()) == sorted(float(one) for one in verdicts.values())
    assert sum(one.get("label") is True and one.get("group") == "a" for one in columns.values()) == 8


def test_lines_of_a_batch_file_have_their_own_captures_and_interventions(place: Replays) -> None:
    job_id = submit_lines(place.bench, list(LINES))
    place.bench.drain(slots=16).look()
    made = place.replay(job_id, capture=CAPTURE)
    made_of = {str(one.input["custom_id"]): one for one in made}
    assert made_of.keys() == {name for name in LINES if line(name).get("capture")}
    assert {one.condition for one in made} == {None}
    for (name, sample), counts in zip(made_of.items(), compared(place, made), strict=True):
        stored = SessionReader(place.bench.store, sample.input["source_session"]).manifest
        assert sorted(counts) == sorted(
            hook
            for hook, info in stored.tensors.items()
            if hook in CAPTURE["hooks"] and info.summary is None and info.shape[0]
        ), name
        assert all(counts[hook] == stored.tensors[hook].shape[0] for hook in counts), name


def test_chats_are_read_too(place: Replays) -> None:
    job_id = insert_chat(place.bench.database, MODEL, max_tokens=4)
    with place.bench.database.write() as session:
        job = jobs.get(session, job_id)
        capture = ReplaySpec.model_validate(
            {"kind": "replay", "sessions": {"jobs": [job_id]}, "capture": {"hooks": ["resid_post.1"]}}
        ).capture
        job.spec = job.spec | {"capture": capture.model_dump(mode="json")}
    place.bench.drain().look()
    (source,) = place.bench.samples(job_id)
    made = place.replay(job_id, capture={"hooks": ["resid_post.1"]})
    assert compared(place, made) == [
        {"resid_post.1": 5 if source.prompt_tokens == 2 else source.prompt_tokens + 3}
    ]
    assert made[0].completion == source.completion


def test_latents_of_stored_sessions_are_those_that_their_runs_would_have_kept(place: Replays) -> None:
    sae = Stored(place.bench, "topk", "k")
    wanted = {"saes": [{"sae": sae.id, "hook": "resid_post.1", "top": 6}]}
    capture = {"hooks": ["resid_post.1"]}
    job = {"task": TASK, "tools": "calculator", "sampling": {"max_tokens": 48}}
    without = place.run(rows=list(PROBLEMS), capture=capture, **job)
    beside = place.sessions(
        place.bench.samples(place.run(rows=list(PROBLEMS), capture=capture | wanted, **job))
    )
    replayed = place.replay(without, capture=capture | wanted)
    again = place.replay(beside[0][1].job_id, capture=capture | wanted)
    for (session, _), (due, _) in zip(place.sessions(replayed), beside, strict=True):
        assert np.array_equal(session["sae:k.indices"][:], due["sae:k.indices"][:])
        np.testing.assert_allclose(session["sae:k.values"][:], due["sae:k.values"][:], atol=1e-3, rtol=1e-4)
    for sample in replayed + again:
        assert list(compared(place, [sample])[0]) == ["resid_post.1"], "latents are not compared"
