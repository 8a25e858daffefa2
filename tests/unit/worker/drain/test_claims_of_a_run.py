"""Claims of a drain beside and between its runs, and what the index then shows of its worker."""

from pathlib import Path

from actograph.contract.model_loads import ModelLoadOptions
from actograph.settings import Settings
from storage.artifacts.local import LocalStore
from storage.index.database import Database
from storage.queue import model_loads, workers
from tests.support.engine_double import OneModel
from tests.support.null_engine import NullEngine
from worker.drain.drain import Drain
from worker.signals.stop_signal import StopSignal


def test_one_worker_loads_a_model_also_if_its_run_has_met_the_request(
    database: Database, tmp_path: Path
) -> None:
    """A request that waits for the end of a run shows nobody as busy; the claim that takes it does."""
    ids = ["wrk_" + letter * 32 for letter in "ab"]
    drains = [
        Drain(
            settings=Settings(
                home=tmp_path, database_url=database.url.render_as_string(False), disk_floor_bytes=0
            ),
            database=database,
            store=LocalStore(tmp_path),
            models=OneModel("demo", NullEngine("demo")),  # type: ignore[arg-type]
            worker_id=worker_id,
            stop=StopSignal(),
            may_load=("demo",),
        )
        for worker_id in ids
    ]
    with database.write() as session:
        for worker_id in ids:
            workers.register(session, worker_id, hostname="here", pid=1, model="demo")
        load = model_loads.create(session, "demo", ModelLoadOptions()).id
    first, second = drains
    met = first._claim(lambda _job: 1, joins=True)
    assert met is not None and met.job.id == load
    taken = first._claim_alone()
    assert taken is not None and taken.job.id == load
    assert second._claim_alone() is None
