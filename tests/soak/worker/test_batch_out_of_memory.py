"""A batch with one sample that fits into no memory: its reason reaches the index, the others are stored."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from actograph.contract.hooks import expand
from actograph.contract.job_specs import CaptureJobSpec
from actograph.contract.resources import Sample, SampleStatus
from actograph.contract.specs import CaptureSpec
from actograph.settings import Settings
from storage import samples
from storage.artifacts.factory import open_store
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import workers
from storage.samples.expansion import capture_samples
from storage.sessions.writer import SessionReader
from tests.support.indexes import create_index
from worker.drain.lease import LeaseKeeper
from worker.engine.engine import Engine
from worker.engine.model.load import load_model
from worker.engine.model.memory import LearnedLimit
from worker.runners.capture import CaptureRunner
from worker.sample.batch import BatchRunner
from worker.sample.generation import BatchGenerator
from worker.sample.provenance import Provenance
from worker.sample.segments import Markup
from worker.signals.stop_signal import StopSignal
from worker.text.chat_template import template_sha256, tokenizer_sha256

pytestmark = pytest.mark.integration

MODEL = "tiny-qwen3"
PROMPTS = ["12+13", "one", "Tom has four apples and buys five more: how many has he then?", "nine", "a b c"]
TOO_LARGE = 2
WORKER = "wrk_" + "0" * 32


@pytest.fixture(scope="module")
def engine(shared: Path) -> Engine:
    torch.set_num_threads(1)
    return Engine(load_model(str(shared / "models" / MODEL), name=MODEL, device="cpu"))


@contextmanager
def no_room_for(engine: Engine, prompt_tokens: int, *, at_step: int) -> Iterator[list[int]]:
    """Let every batch that pads to so many tokens run out of memory; yields their sizes."""
    sizes: list[int] = []
    step, longest = 0, 0

    def before(module: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        nonlocal step, longest
        batch, tokens = args[0].shape[:2]
        step, longest = (0, tokens) if tokens > 1 else (step + 1, longest)
        if step == at_step and longest == prompt_tokens:
            sizes.append(batch)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    handle = engine.model.hf.get_submodule("model.layers.1.mlp").register_forward_pre_hook(before)
    try:
        yield sizes
    finally:
        handle.remove()
        engine.limit = LearnedLimit()


@pytest.mark.parametrize("at_step", [0, 1, 4])
def test_one_sample_fails_with_its_reason_and_the_others_have_sessions(
    tmp_path: Path, engine: Engine, at_step: int
) -> None:
    # buffers below the least that settings allow, so that rows are in files when memory runs out
    settings = Settings(home=tmp_path).model_copy(
        update={"host_buffer_bytes": 1 << 14, "shard_bytes": 1 << 13}
    )
    database = Database(settings.effective_database_url)
    create_index(database)
    store = open_store(settings.effective_artifact_url)
    spec = CaptureJobSpec.model_validate(
        {
            "kind": "capture",
            "model": MODEL,
            "inputs": [{"prompt": prompt} for prompt in PROMPTS],
            "sampling": {"max_tokens": 7},
            "capture": {"points": ["attn_in", "resid_post"], "layers": "all"},
        }
    )
    with database.write() as session:
        workers.register(session, WORKER, hostname="here", pid=1, model=MODEL)
        new = list(capture_samples(spec))
        job = jobs.create(session, kind="capture", model=MODEL, spec=spec, hooks=None, total=len(new))
        samples.insert(session, job.id, new)
        jobs.start(session, job.id)
        leases = samples.claim(session, job.id, worker_id=WORKER, count=len(PROMPTS), lease_seconds=60)
        stored_spec: dict[str, Any] = dict(jobs.get(session, job.id).spec)
    runner = CaptureRunner(stored_spec, engine.model.tokenizer, engine.structure.context_length)
    capture = CaptureSpec.model_validate(stored_spec["capture"])
    origin = Provenance(
        structure=engine.structure,
        tokenizer_sha256=tokenizer_sha256(engine.model.tokenizer),
        template_sha256=template_sha256(engine.model.tokenizer),
        capture=capture,
        hooks=expand(capture.points, capture.layers, capture.hooks, engine.structure),
        sampling=runner.sampling,
        markup=Markup(engine.model.tokenizer),
    )
    generator = BatchGenerator(settings=settings, engine=engine, runner=runner, provenance=origin)
    batch = BatchRunner(store, generator)
    longest = len(runner.prompt(leases[TOO_LARGE]).token_ids)
    stop = StopSignal.create(tmp_path)
    with (
        LeaseKeeper(database, leases, stop, lease_seconds=60, stall_seconds=60) as keeper,
        no_room_for(engine, longest, at_step=at_step) as failed,
    ):
        outcomes = batch.run(leases, keeper)
    assert failed == [5, 3, 1, 1]
    assert outcomes is not None

    lost = outcomes[TOO_LARGE]
    assert lost.error is not None and lost.recorded is None
    with database.write() as session:
        samples.fail(session, lost.lease, lost.error, prompt=PROMPTS[TOO_LARGE])
    with database.read() as session:
        rows, _ = samples.find(session, job.id, limit=10)
        sample = Sample.model_validate_json(samples.resource(rows[TOO_LARGE]).model_dump_json())
    assert sample.status is SampleStatus.FAILED
    assert sample.error is not None and sample.error.type == "cuda_out_of_memory"
    assert sample.error.details is not None and sample.error.details["rss_bytes"] > 0
    assert f"{longest} tokens" in sample.error.message

    kept = set()
    for outcome in outcomes:
        if outcome is lost:
            continue
        assert outcome.error is None and outcome.recorded is not None and outcome.generation is not None
        reader = SessionReader(store, outcome.recorded.session_id)
        reader.verify()
        ids = [*outcome.generation.prompt_ids, *outcome.generation.generated_ids]
        assert list(reader.token_ids()) == ids
        with torch.inference_mode():
            states = engine.model.hf(torch.tensor([ids[:-1]]), output_hidden_states=True).hidden_states
        part = reader.rows("resid_post.0", 0, len(ids) - 1)
        rows_stored = torch.frombuffer(bytearray(part.data), dtype=torch.float32).view(part.shape)
        assert torch.allclose(rows_stored, states[1][0], atol=1e-4)
        kept.add(outcome.recorded.session_id)
    (folder,) = tmp_path.rglob("sessions")
    assert {entry.name for entry in folder.iterdir()} == kept  # no half session and no staging folder
    database.close()
