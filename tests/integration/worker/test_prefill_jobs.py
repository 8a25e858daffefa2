"""Extract jobs and captures in prefill mode, from the spec to stored sessions."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from actograph.client.stored_session import open_folder
from actograph.contract.job_specs import CaptureJobSpec
from storage import samples
from storage.jobs import jobs
from storage.sessions import sessions
from storage.sessions.manifest import SessionManifest
from storage.sessions.writer import SessionReader
from storage.tables.models import JobRow, SampleRow
from tests.support.submitting import insert

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

MODEL = "tiny-qwen3"
TEXTS = ["one and two are three", "Tom has 34 books and Mia has 57 books.", "a"]


class Prefill:
    """Jobs on a bench, run to their end one at a time."""

    def __init__(self, bench: "Bench") -> None:
        self.bench, self.settings, self.structure = bench, bench.settings, bench.engine.structure
        self.folder = self.settings.home / "artifacts" / "sessions"
        self.tokenizer = bench.engine.model.tokenizer

    def run(self, body: dict[str, Any], *, worker_reads: bool = False) -> str:
        """The id of the job. `worker_reads`: its dataset is left to the worker."""
        spec = CaptureJobSpec.model_validate({"kind": "capture", "model": MODEL} | body)
        if worker_reads:
            with self.bench.database.write() as session:
                job_id = jobs.create(session, spec).id
        else:
            job_id = insert(self.bench.database, spec)
        self.bench.drain().look()
        return job_id

    def job(self, job_id: str) -> JobRow:
        with self.bench.database.read() as session:
            return jobs.get(session, job_id)

    def samples(self, job_id: str) -> Sequence[SampleRow]:
        with self.bench.database.read() as session:
            return samples.find(session, job_id, limit=100)[0]

    def sessions(self, job_id: str) -> list[Any]:
        """In the order of their samples."""
        with self.bench.database.read() as session:
            found, _ = sessions.find(session, sessions.SessionFilter(job_id=job_id))
        return sorted(found, key=lambda s: (s.sample_index, s.condition or ""))

    def manifest(self, stored: Any) -> SessionManifest:
        return SessionReader(self.bench.store, stored.id).manifest


@pytest.fixture
def prefill(bench: "Bench") -> Prefill:
    return Prefill(bench)


def test_prefill_stores_every_layer_of_every_token(prefill: Prefill) -> None:
    body = {
        "inputs": [{"prompt": text} for text in TEXTS],
        "capture": {
            "points": ["resid_pre", "mlp_in", "resid_post", "logits"],
            "layers": "all",
            "mode": "prefill",
        },
    }
    job_id = prefill.run(body)
    job = prefill.job(job_id)
    assert (job.status, job.total, job.completed, job.failed) == ("completed", 3, 3, 0)
    tokenizer = prefill.tokenizer
    generated = prefill.run(
        {"kind": "capture", "inputs": body["inputs"], "sampling": {"max_tokens": 1}}
        | {"capture": {"points": ["resid_pre", "mlp_in", "resid_post"], "layers": "all"}}
    )
    for text, stored, other in zip(TEXTS, prefill.sessions(job_id), prefill.sessions(generated), strict=True):
        ids = tokenizer(text)["input_ids"]
        assert (stored.prompt_tokens, stored.generated_tokens, stored.rows) == (len(ids), 0, len(ids))
        names = [f"{p}.{i}" for i in range(2) for p in ("resid_pre", "mlp_in", "resid_post")] + ["logits"]
        assert sorted(stored.hooks) == sorted(names)
        session = open_folder(prefill.folder / stored.id)
        reference = open_folder(prefill.folder / other.id)
        assert session.token_ids.tolist() == ids
        assert session["model.layers[1].output"].hook == "resid_post.1"
        for name in names[:-1]:
            assert session[name].shape[0] == len(ids)
            assert np.allclose(session[name][:], reference[name][:], atol=1e-4)
        assert session["logits"].shape == (len(ids), prefill.structure.vocab_size)
        manifest = prefill.manifest(stored)
        assert manifest.sampling == {} and manifest.turns == [] and manifest.finish_reason == "stop"
    sample = prefill.samples(job_id)[0]
    assert (sample.finish_reason, sample.completion, sample.generated_tokens) == ("stop", "", 0)


def test_a_capture_job_in_prefill_mode_takes_the_same_way(prefill: Prefill) -> None:
    conditions = [
        {"name": "baseline"},
        {"name": "scaled", "interventions": [{"hook": "embed", "op": "scale", "coefficient": 2.0}]},
    ]
    capture = {"hooks": ["embed", "resid_post.1"], "mode": "prefill", "positions": {"stride": 2}}
    messages = [{"role": "user", "content": "12+13?"}, {"role": "assistant", "content": "25"}]
    job_id = prefill.run(
        {
            "kind": "capture",
            "inputs": [{"prompt": TEXTS[1]}, {"messages": messages}],
            "capture": capture | {"stats": {"threshold": 1.0}},
            "conditions": conditions,
        }
    )
    assert prefill.job(job_id).completed == 4
    plain, scaled, chat, _ = (open_folder(prefill.folder / s.id) for s in prefill.sessions(job_id))
    assert np.allclose(scaled["embed"][:], 2 * plain["embed"][:])
    count = len(plain.token_ids)
    assert plain.tokens_of("embed").tolist() == list(range(0, count, 2))
    assert plain["resid_post.1.count"][:].item() == -(-count // 2)
    tokenizer = prefill.tokenizer
    assert str(tokenizer.decode(chat.token_ids.tolist())).rstrip().endswith("<|im_end|>")


def test_a_text_beyond_the_context_fails_alone_or_is_cut(prefill: Prefill) -> None:
    context = prefill.structure.context_length
    body = {
        "inputs": [{"prompt": "one two " * context}, {"prompt": "a"}],
        "capture": {"points": ["resid_post"], "layers": [1], "stats": {"tensors": False}, "mode": "prefill"},
    }
    refused = prefill.job(prefill.run(body))
    assert (refused.status, refused.completed, refused.failed) == ("completed", 1, 1)
    first = prefill.samples(refused.id)[0]
    assert first.error is not None and "truncate: true cuts it" in first.error["message"]

    cut = prefill.run(body | {"truncate": True})
    assert prefill.job(cut).failed == 0
    assert [s.finish_reason for s in prefill.samples(cut)] == ["length", "stop"]
    long, short = prefill.sessions(cut)
    assert (long.prompt_tokens, long.rows) == (context, context)
    whole = prefill.manifest(long).truncated_from
    assert whole is not None and whole > context
    assert prefill.manifest(short).truncated_from is None


def test_texts_of_a_dataset_that_only_the_worker_reads(prefill: Prefill) -> None:
    rows = [{"body": text, "other": 1} for text in ["skipped", *TEXTS]]
    (prefill.settings.home / "data" / "texts.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    body = {
        "dataset": {"path": "texts.jsonl"},
        "text_field": "body",
        "offset": 1,
        "limit": 2,
        "capture": {"points": ["resid_post"], "reduce": "mean", "mode": "prefill"},
    }
    job = prefill.job(prefill.run(body, worker_reads=True))
    assert (job.total, job.completed) == (2, 2)
    assert [(s.sample_index, s.prompt) for s in prefill.samples(job.id)] == [(1, TEXTS[0]), (2, TEXTS[1])]
    missing = prefill.job(prefill.run(body | {"text_field": "text"}, worker_reads=True))
    assert missing.status == "failed"
    assert missing.error is not None and "row 1: text is missing" in missing.error["message"]
