"""Preparation of a slice: the model, the runner of the job's kind, hooks and vectors."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
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
from storage.queue import chat_batches, claim
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
from worker.sample.batch import BatchRunner
from worker.sample.generation import BatchGenerator
from worker.sample.provenance import Provenance
from worker.sample.segments import markup_of
from worker.sample.steering import UNSTEERED, Steering, steering_of
from worker.text.chat_template import template_sha256, tokenizer_sha256


@dataclass(frozen=True, kw_only=True)
class Slice:
    """One job, ready to run."""

    job_id: str
    model: str
    priority: int
    owner: str | None
    batches: BatchRunner
    #: properties shared by all chats of a batch; None if the job is no chat
    chat: Mapping[str, Any] | None = None
    #: properties shared by all lines of a batch; None if the job is no batch file
    lines: Mapping[str, Any] | None = None
    #: error of these lines, if they cannot run
    refused: ActographError | None = None


class Slices:
    """Prepares jobs for a slice."""

    def __init__(
        self, *, settings: Settings, database: Database, store: ArtifactStore, model: JobModels
    ) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        self._model = model
        self._live = LiveTextWriter(settings.broker_url)
        self._datasets = DatasetReader(Uploads(database, store), settings.data_roots)

    def prepare(self, job_id: str) -> Slice:
        """Load the model if necessary, read the job's data, resolve its hooks.

        A batch file is prepared for its next line and the lines that can share a batch with it.

        Raises:
            ActographError: the job cannot be run at all.
        """
        line = None
        with self._database.read() as session:
            row = jobs.get(session, job_id)
            if row.kind == chat_job.BATCH:
                line = claim.next_input(session, job_id)
        spec = row.spec if line is None else chat_job.spec_of(row.spec, line)
        engine, pinned = self._model.engine_of_job(row)
        structure = engine.structure
        if pinned is not None and pinned.savepoints != structure.savepoints:
            # savepoints as they were when the job was submitted
            structure = structure.model_copy(update={"savepoints": pinned.savepoints})
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
        generator = BatchGenerator(
            settings=self._settings,
            engine=engine,
            runner=runner,
            provenance=provenance,
            steering=steering,
            markup=markup_of(spec, engine.model.tokenizer),
            time_limit=row.spec.get("sample_timeout_seconds") or None,
            live=self._live if row.kind == chat_job.CHAT else None,
        )
        return Slice(
            job_id=job_id,
            model=row.model,
            priority=row.priority,
            owner=row.owner,
            batches=BatchRunner(self._store, generator),
            chat=chat_batches.key_of(row.spec, pinned) if row.kind == chat_job.CHAT else None,
            lines=None if line is None else chat_job.unit_key(line),
            refused=refused,
        )

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
