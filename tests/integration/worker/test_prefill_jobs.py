"""Extract jobs and captures in prefill mode, from the spec to stored sessions."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actograph import plans
from actograph.client.tensors import open_folder
from actograph.contract.job_specs import CaptureJobSpec
from actograph.contract.specs import CaptureSpec
from actograph.settings import Settings
from storage import samples
from storage.artifacts.factory import open_store
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import workers
from storage.samples.expansion import capture_samples
from storage.sessions import sessions
from storage.sessions.writer import SessionReader
from storage.tables.models import JobRow, SampleRow
from tests.support.indexes import create_index
from worker.drain.drain import Drain
from worker.drain.model_holder import ModelHolder
from worker.signals.stop_signal import StopSignal

pytestmark = pytest.mark.integration

MODEL = "tiny-qwen3"
WORKER = "wrk_" + "0" * 32
TEXTS = ["one and two are three", "Tom has 34 books and Mia has 57 books.", "a"]


class Broker:
    def wake(self, model: str, hops: int = 0) -> bool:
        return True


@dataclass
class Bench:
    """A database, a store and a drain that run one job at a time."""

    settings: Settings
    database: Database
    holder: ModelHolder

    @property
    def folder(self) -> Path:
        return self.settings.home / "artifacts" / "sessions"

    def run(self, body: dict[str, Any], *, worker_reads: bool = False) -> str:
        """The id of the job, run to its end. `worker_reads`: its dataset is left to the worker."""
        spec = CaptureJobSpec.model_validate({"kind": "capture", "model": MODEL} | body)
        new = None if worker_reads else list(capture_samples(spec))
        with self.database.write() as session:
            total = None if new is None else len(new)
            row = jobs.create(session, kind=spec.kind, model=MODEL, spec=spec, hooks=None, total=total)
            samples.insert(session, row.id, new or ())
        drain = Drain(
            settings=self.settings,
            database=self.database,
            store=open_store(self.settings.effective_artifact_url),
            broker=Broker(),  # type: ignore[arg-type]
            models=self.holder,
            worker_id=WORKER,
            stop=StopSignal.create(self.settings.home),
        )
        drain.run_slice(row.id)
        return row.id

    def job(self, job_id: str) -> JobRow:
        with self.database.read() as session:
            return jobs.get(session, job_id)

    def samples(self, job_id: str) -> Sequence[SampleRow]:
        with self.database.read() as session:
            rows, _ = samples.find(session, job_id, limit=100)
            return rows

    def sessions(self, job_id: str) -> list[Any]:
        """In the order of their samples."""
        with self.database.read() as session:
            found, _ = sessions.find(session, sessions.SessionFilter(job_id=job_id))
        return sorted(found, key=lambda s: (s.sample_index, s.condition or ""))


@pytest.fixture(scope="module")
def holder(shared: Path) -> Iterator[ModelHolder]:
    torch.set_num_threads(2)
    settings = Settings(model=f"{MODEL}={shared / 'models' / MODEL}", device="cpu")
    made = ModelHolder(settings, lambda structure: None)
    yield made
    made.unload()


@pytest.fixture
def bench(tmp_path: Path, holder: ModelHolder) -> Iterator[Bench]:
    (tmp_path / "data").mkdir()
    settings = Settings(home=tmp_path, data_roots=(str(tmp_path / "data"),))
    database = Database(f"sqlite:///{tmp_path / 'actograph.db'}")
    create_index(database)
    with database.write() as session:
        workers.register(session, WORKER, hostname="here", pid=1, model=MODEL)
    yield Bench(settings, database, holder)
    database.close()


def test_prefill_stores_every_layer_of_every_token(bench: Bench) -> None:
    body = {
        "inputs": [{"prompt": text} for text in TEXTS],
        "capture": {
            "points": ["resid_pre", "mlp_in", "resid_post", "logits"],
            "layers": "all",
            "mode": "prefill",
        },
    }
    job_id = bench.run(body)
    job = bench.job(job_id)
    assert (job.status, job.total, job.completed, job.failed) == ("completed", 3, 3, 0)
    tokenizer = bench.holder.engine_for(MODEL).model.tokenizer
    generated = bench.run(
        {"kind": "capture", "inputs": body["inputs"], "sampling": {"max_tokens": 1}}
        | {"capture": {"points": ["resid_pre", "mlp_in", "resid_post"], "layers": "all"}}
    )
    for text, stored, other in zip(TEXTS, bench.sessions(job_id), bench.sessions(generated), strict=True):
        ids = tokenizer(text)["input_ids"]
        assert (stored.prompt_tokens, stored.generated_tokens, stored.rows) == (len(ids), 0, len(ids))
        names = [f"{p}.{i}" for i in range(2) for p in ("resid_pre", "mlp_in", "resid_post")] + ["logits"]
        assert sorted(stored.hooks) == sorted(names)
        session = open_folder(bench.folder / stored.id)
        reference = open_folder(bench.folder / other.id)
        assert session.token_ids.tolist() == ids
        for name in names[:-1]:
            assert session[name].shape[0] == len(ids)
            assert np.allclose(session[name][:], reference[name][:], atol=1e-4)
        assert session["logits"].shape == (len(ids), bench.holder.engine_for(MODEL).structure.vocab_size)
        reader = SessionReader(open_store(bench.settings.effective_artifact_url), stored.id)
        assert reader.manifest.sampling == {} and reader.manifest.turns == []
        assert reader.manifest.finish_reason == "stop"
    sample = bench.samples(job_id)[0]
    assert (sample.finish_reason, sample.completion, sample.generated_tokens) == ("stop", "", 0)


def test_a_capture_job_in_prefill_mode_takes_the_same_way(bench: Bench) -> None:
    conditions = [
        {"name": "baseline"},
        {"name": "scaled", "interventions": [{"hook": "embed", "op": "scale", "coefficient": 2.0}]},
    ]
    capture = {"hooks": ["embed", "resid_post.1"], "mode": "prefill", "positions": {"stride": 2}}
    messages = [{"role": "user", "content": "12+13?"}, {"role": "assistant", "content": "25"}]
    job_id = bench.run(
        {
            "kind": "capture",
            "inputs": [{"prompt": TEXTS[1]}, {"messages": messages}],
            "capture": capture | {"stats": {"threshold": 1.0}},
            "conditions": conditions,
        }
    )
    assert bench.job(job_id).completed == 4
    plain, scaled, chat, _ = (open_folder(bench.folder / s.id) for s in bench.sessions(job_id))
    assert np.allclose(scaled["embed"][:], 2 * plain["embed"][:])
    count = len(plain.token_ids)
    assert plain.row_positions is not None
    assert plain.row_positions.tolist() == list(range(0, count, 2))
    assert plain["resid_post.1.count"][:].item() == -(-count // 2)
    tokenizer = bench.holder.engine_for(MODEL).model.tokenizer
    assert str(tokenizer.decode(chat.token_ids.tolist())).rstrip().endswith("<|im_end|>")


def test_a_text_beyond_the_context_fails_alone_or_is_cut(bench: Bench) -> None:
    context = bench.holder.engine_for(MODEL).structure.context_length
    body = {
        "inputs": [{"prompt": "one two " * context}, {"prompt": "a"}],
        "capture": {"points": ["resid_post"], "layers": [1], "stats": {"tensors": False}, "mode": "prefill"},
    }
    refused = bench.job(bench.run(body))
    assert (refused.status, refused.completed, refused.failed) == ("completed", 1, 1)
    first = bench.samples(refused.id)[0]
    assert first.error is not None and "truncate: true cuts it" in first.error["message"]

    cut = bench.run(body | {"truncate": True})
    assert bench.job(cut).failed == 0
    assert [s.finish_reason for s in bench.samples(cut)] == ["length", "stop"]
    long, short = bench.sessions(cut)
    assert (long.prompt_tokens, long.rows) == (context, context)
    store = open_store(bench.settings.effective_artifact_url)
    whole = SessionReader(store, long.id).manifest.truncated_from
    assert whole is not None and whole > context
    assert SessionReader(store, short.id).manifest.truncated_from is None


def test_texts_of_a_dataset_that_only_the_worker_reads(bench: Bench) -> None:
    rows = [{"body": text, "other": 1} for text in ["skipped", *TEXTS]]
    (bench.settings.home / "data" / "texts.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    body = {
        "dataset": {"path": "texts.jsonl"},
        "text_field": "body",
        "offset": 1,
        "limit": 2,
        "capture": {"points": ["resid_post"], "reduce": "mean", "mode": "prefill"},
    }
    job = bench.job(bench.run(body, worker_reads=True))
    assert (job.total, job.completed) == (2, 2)
    assert [(s.sample_index, s.prompt) for s in bench.samples(job.id)] == [(1, TEXTS[0]), (2, TEXTS[1])]
    missing = bench.job(bench.run(body | {"text_field": "text"}, worker_reads=True))
    assert missing.status == "failed"
    assert missing.error is not None and "row 1: text is missing" in missing.error["message"]


@pytest.mark.covering(2)
@pytest.mark.parametrize(
    "capture",
    [
        {"points": ["resid_post"]},
        {"hooks": ["resid_post.1", "logits"], "positions": {"stride": 3}},
        {"points": ["resid_post"], "stats": {"tensors": False}},
        {"hooks": ["logits"], "positions": "last"},
    ],
)
def test_a_session_has_about_the_size_that_was_told(bench: Bench, capture: dict[str, Any]) -> None:
    text = "one and two are " * 20
    job = bench.job(bench.run({"inputs": [{"prompt": text}], "capture": capture | {"mode": "prefill"}}))
    (stored,) = bench.sessions(job.id)
    told = plans.stored_bytes(
        bench.holder.engine_for(MODEL).structure,
        job.hooks or (),
        CaptureSpec.model_validate(capture | {"mode": "prefill"}),
        prompt_tokens=stored.prompt_tokens,
        generated_tokens=0,
    )
    # manifest, headers, and the index of a session of several files
    assert abs(told - stored.bytes) < 4096, (told, stored.bytes)
