"""Jobs that are ready to run: the model, the runner of the job's kind, hooks and vectors."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from actograph.contract import chat_job, hooks
from actograph.contract.errors import ActographError, ServiceUnavailable
from actograph.contract.job_specs import CaptureJobSpec, EvaluationSpec, check_capture
from actograph.contract.models import ModelStructure
from actograph.contract.specs import CaptureSpec
from actograph.datasets.dataset_rows import DatasetRow
from actograph.settings import Settings
from storage.artifacts.store import ArtifactStore
from storage.broker.live_text import LiveTextWriter
from storage.files.dataset_sources import Uploads
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import claim
from storage.samples import NewSample
from storage.samples.expansion import capture_samples, evaluation_samples
from storage.submission import bulk_insert
from storage.tables.models import JobRow
from worker.drain.job_models import JobModels
from worker.engine.engine import Engine
from worker.evals.datasets import DatasetReader
from worker.runners.batch_file import BatchFileRunner
from worker.runners.capture import CaptureRunner
from worker.runners.chat import ChatRunner
from worker.runners.evaluation import EvaluationRunner
from worker.runners.runner import Runner
from worker.sample.open_job import OpenJob
from worker.sample.provenance import Provenance
from worker.sample.segments import markup_of
from worker.sample.steering import UNSTEERED, Steering, steering_of
from worker.text.chat_template import template_sha256, tokenizer_sha256

#: open jobs that are kept
MOST_OPEN = 8


class OpenJobs:
    """Opens jobs, and keeps the last few open."""

    def __init__(
        self, *, settings: Settings, database: Database, store: ArtifactStore, model: JobModels
    ) -> None:
        self._settings = settings
        self._database = database
        self._model = model
        self._live = LiveTextWriter(settings.broker_url)
        self._datasets = DatasetReader(Uploads(database, store), settings.data_roots)
        #: `claim.key_of` -> open job, the last used one at the end
        self._open: dict[str, OpenJob] = {}
        # open jobs hold the model
        model.before_unload(self._open.clear)

    def __contains__(self, key: str) -> bool:
        return key in self._open

    def may_join(self, key: str, run: OpenJob) -> bool:
        """Whether the job is open, and runs on the same engine as another one."""
        return key in self._open and self._open[key].options.traced == run.options.traced

    def get(self, key: str) -> OpenJob:
        """An open job by its `claim.key_of`."""
        found = self._open[key] = self._open.pop(key)
        return found

    def open(self, job_id: str, *, load: bool = True) -> None:
        """Load the model if necessary, read the job's data, resolve its hooks.

        A batch file is opened for its next line and the lines that share a form with it.

        Args:
            load: whether a model may be loaded.

        Raises:
            ActographError: the job cannot be run at all.
            NotHeld: it needs a model that may not be loaded now.
        """
        line = None
        with self._database.read() as session:
            row = jobs.get(session, job_id)
            if row.kind == chat_job.BATCH:
                line = claim.next_input(session, job_id)
        spec = row.spec if line is None else chat_job.spec_of(row.spec, line)
        engine, pinned = self._model.engine_of_job(row, load=load)
        structure = engine.structure
        if pinned is not None and pinned.savepoints != structure.savepoints:
            # savepoints as they were when the job was submitted
            structure = structure.model_copy(update={"savepoints": pinned.savepoints})
        name, reason = structure.engine_for(spec["engine"])
        structure = structure.model_copy(update={"engine": name, "engine_reason": reason})
        runner = self._runner(row, spec, engine)
        steering, provenance, refused = UNSTEERED, None, None
        try:
            with self._database.read() as session:
                steering = steering_of(session, spec, row.model, engine, structure)
            provenance = self._provenance(row, spec, engine, runner, structure=structure, steering=steering)
        except ServiceUnavailable:
            raise
        except ActographError as error:
            if line is None:
                raise
            refused = error  # other lines of the file may still run
        ready = OpenJob(
            settings=self._settings,
            engine=engine,
            runner=runner,
            provenance=provenance,
            steering=steering,
            markup=markup_of(spec, engine.model.tokenizer),
            time_limit=row.spec.get("sample_timeout_seconds") or None,
            live=self._live if row.kind == chat_job.CHAT else None,
            refused=refused,
            traced=name == "traced",
        )
        with self._database.read() as session:
            key = claim.key_of(jobs.get(session, job_id), line)  # with its pin
        self._open.pop(key, None)
        self._open[key] = ready
        while len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def _runner(self, row: JobRow, spec: Mapping[str, Any], engine: Engine) -> Runner:
        """The runner of the job's kind; `spec` is the spec of the job, or of lines of a batch file."""
        if row.kind == chat_job.BATCH:
            return BatchFileRunner(spec, engine.model.tokenizer, engine.structure)
        if row.kind == chat_job.CHAT:
            return ChatRunner(row.spec, engine.model.tokenizer, engine.structure)
        if row.kind != "evaluation":
            if row.total is None:
                capture = CaptureJobSpec.model_validate(row.spec)
                self._insert_samples(row, lambda: capture_samples(capture, self._datasets.texts(capture)))
            return CaptureRunner(row.spec, engine.model.tokenizer, engine.structure.context_length)
        evaluation = EvaluationSpec.model_validate(row.spec)
        if row.total is None:
            self._insert_samples(row, lambda: evaluation_samples(evaluation, self._rows(evaluation)))
        return EvaluationRunner(evaluation, engine.model.tokenizer, self._datasets.fewshot_pool(evaluation))

    def _rows(self, spec: EvaluationSpec) -> list[DatasetRow]:
        return self._datasets.rows(spec.dataset, spec.task, limit=spec.limit, offset=spec.offset)

    def _insert_samples(self, row: JobRow, read: Callable[[], Iterator[NewSample]]) -> None:
        """Insert the samples of a dataset that only workers can read."""
        bulk_insert.insert_dataset(self._database, row.id, list(read()))

    def _provenance(
        self,
        row: JobRow,
        spec: Mapping[str, Any],
        engine: Engine,
        runner: Runner,
        *,
        structure: ModelStructure,
        steering: Steering,
    ) -> Provenance | None:
        capture = CaptureSpec.model_validate(spec["capture"]) if spec["capture"] else None
        if capture is None:
            return None
        names = hooks.expand(capture.points, capture.layers, capture.hooks, structure)
        check_capture(capture, names, structure)
        if row.hooks != names and row.kind != chat_job.BATCH:
            with self._database.write() as session:
                jobs.set_hooks(session, row.id, names)
        return Provenance(
            structure=structure,
            tokenizer_sha256=tokenizer_sha256(engine.model.tokenizer),
            template_sha256=template_sha256(engine.model.tokenizer),
            capture=capture,
            hooks=names,
            resolved={name: hooks.resolve(name, structure) for name in capture.hooks},
            sampling=runner.sampling,
            markup=markup_of(spec, engine.model.tokenizer),
            steering=steering,
            takes_turns=runner.takes_turns,
        )
