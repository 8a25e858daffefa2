"""The estimate of a session's size, against sessions that were really stored."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from actograph import plans
from actograph.contract.job_specs import job_spec_adapter
from actograph.contract.specs import CaptureSpec
from actograph.settings import Settings
from storage import samples
from storage.artifacts.factory import open_store
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import workers
from storage.samples.expansion import capture_samples
from storage.sessions import sessions
from tests.support.indexes import create_index
from worker.drain.drain import Drain
from worker.drain.model_holder import ModelHolder
from worker.signals.stop_signal import StopSignal

pytestmark = pytest.mark.integration

MODEL = "tiny-qwen3"
WORKER = "wrk_" + "0" * 32


class Broker:
    def wake(self, model: str, hops: int = 0) -> bool:
        return True


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'actograph.db'}")
    create_index(opened)
    with opened.write() as session:
        workers.register(session, WORKER, hostname="here", pid=1, model=MODEL)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def holder(shared: Path) -> Iterator[ModelHolder]:
    torch.set_num_threads(2)
    settings = Settings(model=str(shared / "models" / MODEL), device="cpu")
    made = ModelHolder(
        settings.model_copy(update={"model": f"{MODEL}={settings.model}"}), lambda structure: None
    )
    yield made
    made.unload()


@pytest.mark.covering(3)
@pytest.mark.parametrize(
    "capture",
    [
        {"points": ["attn_in", "mlp_in", "resid_post"], "layers": "all"},
        {"hooks": ["resid_post.0"], "dtype": "float16"},
        {"hooks": ["resid_post.0", "logits"], "positions": "generated"},
        {"points": ["mlp_out"], "layers": "all", "features": {"first": 7}},
        {"hooks": ["resid_mid.1"], "positions": {"stride": 5}},
        {"points": ["resid_post"], "layers": "all", "reduce": "mean"},
        {"points": ["resid_post", "mlp_in"], "layers": "all", "stats": {"tensors": False}},
        {"hooks": ["resid_post.1"], "stats": {"threshold": 1.0}},
    ],
)
def test_a_session_has_about_the_size_that_was_told(
    tmp_path: Path, database: Database, holder: ModelHolder, capture: dict[str, Any]
) -> None:
    settings = Settings(home=tmp_path)
    drain = Drain(
        settings=settings,
        database=database,
        store=open_store(settings.effective_artifact_url),
        broker=Broker(),  # type: ignore[arg-type]
        models=holder,
        worker_id=WORKER,
        stop=StopSignal.create(tmp_path),
    )
    body = {
        "kind": "capture",
        "model": MODEL,
        "inputs": [{"prompt": "one and two are " * 20}],
        "capture": capture,
        "sampling": {"max_tokens": 40},
    }
    spec: Any = job_spec_adapter.validate_python(body)
    with database.write() as session:
        row = jobs.create(session, kind="capture", model=MODEL, spec=spec, hooks=None, total=1)
        samples.insert(session, row.id, capture_samples(spec))
    drain.run_slice(row.id)
    with database.read() as session:
        (stored, *_), _ = sessions.find(session, sessions.SessionFilter(job_id=row.id))
        hooks = jobs.get(session, row.id).hooks
    assert hooks
    told = plans.stored_bytes(
        holder.engine_for(MODEL).structure,
        hooks,
        CaptureSpec.model_validate(capture),
        prompt_tokens=stored.prompt_tokens,
        generated_tokens=stored.generated_tokens,
    )
    # what stands beside the rows is a manifest of some kilobytes
    assert abs(told - stored.bytes) < 2048, (told, stored.bytes)
