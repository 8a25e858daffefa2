"""An index, a store, a worker with a model, and an analysis worker, without a broker."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.contract.resources import JobResults
from actograph.contract.specs import ANALYSIS_QUEUE, AnyAnalysisSpec, ExtractSpec
from actograph.settings import Settings
from storage import samples
from storage.artifacts.factory import open_store
from storage.files import files
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import workers
from storage.results import summary
from storage.samples import NewSample
from storage.samples.expansion import extract_samples
from storage.sessions import sessions
from storage.sessions.analysed import rows
from storage.sessions.reader import SessionReader
from tests.support.indexes import create_index
from worker.analysis.drain import AnalysisDrain
from worker.drain.drain import Drain
from worker.drain.model_holder import ModelHolder
from worker.signals.stop_signal import StopSignal

WORKER, ANALYST = "wrk_" + "0" * 32, "wrk_" + "1" * 32


class AnalysisBench:
    """Runs extractions and analyses of one model."""

    def __init__(self, settings: Settings, model: str) -> None:
        self.settings, self.model = settings, model
        self.database = Database(f"sqlite:///{settings.home / 'actograph.db'}")
        create_index(self.database)
        self.store = open_store(settings.effective_artifact_url)
        self.holder = ModelHolder(settings, lambda structure: None)
        with self.database.write() as session:
            workers.register(session, WORKER, hostname="here", pid=1, model=model)
            workers.register(session, ANALYST, hostname="here", pid=1, model=ANALYSIS_QUEUE)

    def extract(self, texts: Sequence[str], points: Sequence[str], dtype: str = "model") -> str:
        """A finished extraction of these points."""
        fields = {
            "kind": "extract",
            "model": self.model,
            "inputs": [{"prompt": text} for text in texts],
            "capture": {"points": list(points), "layers": "all", "dtype": dtype},
        }
        spec = ExtractSpec.model_validate(fields)
        job_id = self.create(spec, list(extract_samples(spec, ())))
        Drain(
            settings=self.settings,
            database=self.database,
            store=self.store,
            broker=None,  # type: ignore[arg-type]
            models=self.holder,
            worker_id=WORKER,
            stop=StopSignal.create(self.settings.home),
        ).run_slice(job_id)
        return job_id

    def submit(self, spec: AnyAnalysisSpec) -> str:
        """An analysis that waits."""
        return self.create(spec, [NewSample(sample_index=0, condition="", epoch=0, input={}, seed=0)])

    def work(self, **settings: Any) -> None:
        """Run the waiting analyses."""
        AnalysisDrain(
            settings=self.settings.model_copy(update=settings),
            database=self.database,
            store=self.store,
            worker_id=ANALYST,
            stop=StopSignal.create(self.settings.home),
        ).look()

    def results(self, job_id: str) -> JobResults:
        with self.database.read() as session:
            return summary.of_job(session, jobs.get(session, job_id))

    def analyse(self, spec: AnyAnalysisSpec) -> JobResults:
        """Results of an analysis that is run now."""
        job_id = self.submit(spec)
        self.work()
        return self.results(job_id)

    def error(self, job_id: str) -> str:
        """Reason of a failed job."""
        with self.database.read() as session:
            error = jobs.get(session, job_id).error
        assert error is not None
        return str(error["message"])

    def files(self, job_id: str) -> dict[str, bytes]:
        """Contents of an analysis's files by name."""
        with self.database.read() as session:
            found = [
                (row, files.chunks_of(session, row.id))
                for row in files.of_job(session, job_id, files.ANALYSIS)
            ]
        return {
            row.filename: b"".join(files.stored(row, self.store, chunks).stream()) for row, chunks in found
        }

    def readers(self, job_id: str) -> list[SessionReader]:
        """The job's sessions, oldest first."""
        with self.database.read() as session:
            ids = sessions.ids(session, sessions.SessionFilter(job_id=job_id))
        return [SessionReader(self.store, one) for one in ids]

    def stored(self, job_id: str, hook: str) -> NDArray[Any]:
        """All rows of a hook, session after session."""
        parts = [
            next(rows(one, hook, np.arange(one.tensor_info(hook).shape[0]))).values
            for one in self.readers(job_id)
        ]
        return np.concatenate(parts)

    def create(self, spec: Any, new: list[NewSample]) -> str:
        with self.database.write() as session:
            row = jobs.create(
                session, kind=spec.kind, model=spec.model, spec=spec, hooks=None, total=len(new)
            )
            samples.insert(session, row.id, new)
        return row.id


@contextmanager
def analysis_bench(home: Path, model: str, checkpoint: Path) -> Iterator[AnalysisBench]:
    """A bench in a folder of its own, with a model that is loaded when a job needs it."""
    settings = Settings(home=home, model=f"{model}={checkpoint}", device="cpu", disk_floor_bytes=0)
    made = AnalysisBench(settings, model)
    yield made
    made.database.close()
    made.holder.unload()
