"""Jobs that are ready to run: the model, the runner of the job's kind, hooks and vectors.

Chats and lines of batch files come in great numbers and are much alike: those with equal captures and
interventions share an open job.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy.exc import DBAPIError

from actograph.contract import chat_job, hooks
from actograph.contract.errors import ActographError
from actograph.contract.job_specs import (
    CaptureJobSpec,
    EvaluationSpec,
    PatchSpec,
    captured_hooks,
    check_capture,
)
from actograph.contract.models import ModelStructure, PinnedModel
from actograph.contract.specs import CaptureSpec
from actograph.settings import Settings
from evals.dataset_rows import DatasetRow
from evals.user_functions.functions import UserFunctions
from storage.artifacts.store import ArtifactStore
from storage.broker.live_text import LiveTextWriter
from storage.files.dataset_sources import Uploads
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue.claim import HeldModel
from storage.queue.leases import LeasedSample
from storage.samples import NewSample
from storage.samples.expansion import capture_samples, evaluation_samples
from storage.submission import bulk_insert
from storage.tables.models import JobRow
from worker.drain.job_models import JobModels
from worker.engine.client import EngineClient
from worker.runners.capture import CaptureRunner
from worker.runners.chat import ChatRunner
from worker.runners.evaluation import EvaluationRunner
from worker.runners.job_datasets import DatasetReader
from worker.runners.patch import PatchRunner
from worker.runners.replay import ReplayRunner, StoredSources
from worker.runners.runner import Runner
from worker.sample.open_job import OpenJob
from worker.sample.provenance import Provenance
from worker.sample.readouts import metric_of, readouts_of
from worker.sample.saes import saes_of
from worker.sample.steering import Steering, steering_of
from worker.sample.unforeseen import unforeseen
from worker.text.chat_template import template_sha256
from worker.text.segments import markup_of
from worker.text.tokenizer import tokenizer_sha256

#: open jobs that are kept
MOST_OPEN = 32
_OF_CHATS = (chat_job.CHAT, chat_job.BATCH)


class OpenJobs:
    """Opens jobs, and keeps the last few open."""

    def __init__(
        self, *, settings: Settings, database: Database, store: ArtifactStore, model: JobModels
    ) -> None:
        self._settings = settings
        self._database = database
        self._model = model
        self._live = LiveTextWriter(settings.broker_url)
        seconds = settings.user_function_seconds
        self._tools = UserFunctions.of(settings.user_tools, seconds)
        self._scorers = UserFunctions.of(settings.user_scorers, seconds)
        self._store = store
        self._datasets = DatasetReader(Uploads(database, store), settings.data_roots)
        #: id, or form of chats -> open job, the last used one at the end
        self._open: dict[str, OpenJob] = {}
        # open jobs hold the model
        model.before_unload(self._open.clear)

    def is_open(self, job: JobRow, run: OpenJob | None = None) -> bool:
        """Whether samples of the job can run, and beside this one if it is given: on the same engine."""
        if job.kind in _OF_CHATS:
            is_open = self._model.held == HeldModel(job.model, job.identity_sha256)
            # chats take the model's own engine
            traced = run is not None and run.engine.structure.engine == "traced"
        else:
            found = self._open.get(job.id)
            is_open, traced = found is not None, found is not None and found.options.traced
        return is_open and (run is None or traced == run.options.traced)

    def of(self, job: JobRow, sample: LeasedSample) -> OpenJob:
        """The open job of a claimed sample. `refused` says why a chat cannot run."""
        key, spec = job.id, job.spec
        if job.kind in _OF_CHATS:
            own = sample.input if job.kind == chat_job.BATCH else spec
            spec = spec | {name: own.get(name) or spec[name] for name in ("capture", "interventions")}
            shared = {name: spec[name] for name in ("capture", "interventions", "sample_timeout_seconds")}
            pinned = jobs.pin_of(job)
            key = json.dumps([job.kind, shared, pinned and pinned.savepoints], sort_keys=True)
            if key not in self._open:
                ready = self._ready_for_chats(job, spec)
                if ready.refused is not None:
                    return ready
                self._keep(key, ready)
        found = self._open[key] = self._open.pop(key)
        return found

    def open(self, job_id: str, *, load: bool = True) -> None:
        """Load the model if necessary, read the job's data, resolve its hooks.

        Args:
            load: whether a model may be loaded.

        Raises:
            ActographError: the job cannot be run at all.
            NotHeld: it needs a model that may not be loaded now.
        """
        with self._database.read() as session:
            row = jobs.get(session, job_id)
        engine, pinned = self._model.engine_of_job(row, load=load)
        if row.kind not in _OF_CHATS:
            self._keep(row.id, self._ready(row, row.spec, engine, pinned))

    def close(self) -> None:
        """End the processes of the operator's functions."""
        self._tools.close()
        self._scorers.close()

    def _keep(self, key: str, ready: OpenJob) -> None:
        self._open.pop(key, None)
        self._open[key] = ready
        while len(self._open) > MOST_OPEN:
            del self._open[next(iter(self._open))]

    def _ready_for_chats(self, row: JobRow, spec: Mapping[str, Any]) -> OpenJob:
        """An open job whose samples fail one by one if their capture or intervention is faulty."""
        engine, pinned = self._model.engine_of_job(row, load=False)
        try:
            return self._ready(row, spec, engine, pinned)
        except ActographError as error:
            reason = error
        except DBAPIError:
            raise
        except Exception as error:  # noqa: BLE001 (it fails these samples alone)
            reason = unforeseen(error, f"while job {row.id} was prepared")
        plain = {**spec, "capture": None, "interventions": []}
        return self._ready(row, plain, engine, pinned, refused=reason)

    def _ready(
        self,
        row: JobRow,
        spec: Mapping[str, Any],
        engine: EngineClient,
        pinned: PinnedModel | None,
        refused: ActographError | None = None,
    ) -> OpenJob:
        """Resolve what all samples share; `spec` is the spec of the job, or of lines of a batch file."""
        structure = engine.structure
        if pinned is not None and pinned.savepoints != structure.savepoints:
            # savepoints as they were when the job was submitted
            structure = structure.model_copy(update={"savepoints": pinned.savepoints})
        name, reason = structure.engine_for(spec["engine"])
        structure = structure.model_copy(update={"engine": name, "engine_reason": reason})
        if row.kind == "replay":
            structure = structure.read_whole()
        runner = self._runner(row, engine)

        def steered(spec: Mapping[str, Any]) -> Steering:
            with self._database.read() as session:
                return steering_of(session, spec, row.model, structure, self._store)

        steering = steered(spec)
        return OpenJob(
            settings=self._settings,
            engine=engine,
            runner=runner,
            provenance=self._provenance(row, spec, engine, runner, structure=structure, steering=steering),
            steering=steering,
            markup=markup_of(spec, engine.tokenizer),
            time_limit=row.spec.get("sample_timeout_seconds") or None,
            live=self._live if row.kind == chat_job.CHAT else None,
            refused=refused,
            traced=name == "traced",
            steering_of=steered,
        )

    def _runner(self, row: JobRow, engine: EngineClient) -> Runner:
        if row.kind in _OF_CHATS:
            return ChatRunner(engine.tokenizer, engine.structure)
        if row.kind == "replay":
            return ReplayRunner(self._sources(engine))
        if row.kind == "patch":
            patch = PatchSpec.model_validate(row.spec)
            metric = patch.metric_readout
            readout = None
            if metric is not None:
                readout = metric_of(self._database, metric, row.model, engine.structure)
            return PatchRunner(patch, self._sources(engine), engine.tokenizer, readout)
        if row.kind != "evaluation":
            if not row.is_expanded:
                capture = CaptureJobSpec.model_validate(row.spec)
                self._insert_samples(row, lambda: capture_samples(capture, self._datasets.texts(capture)))
            return CaptureRunner(row.spec, engine.tokenizer, engine.structure.context_length)
        evaluation = EvaluationSpec.model_validate(row.spec)
        if not row.is_expanded:
            self._insert_samples(row, lambda: evaluation_samples(evaluation, self._rows(evaluation)))
        return EvaluationRunner(
            evaluation,
            engine.tokenizer,
            self._datasets.fewshot_pool(evaluation),
            tools=self._tools,
            scorers=self._scorers,
        )

    def _sources(self, engine: EngineClient) -> StoredSources:
        digest = tokenizer_sha256(engine.tokenizer)
        return StoredSources(engine.structure, digest, self._database, self._store)

    def _rows(self, spec: EvaluationSpec) -> list[DatasetRow]:
        return self._datasets.rows(spec.dataset, spec.task, limit=spec.limit, offset=spec.offset)

    def _insert_samples(self, row: JobRow, read: Callable[[], Iterator[NewSample]]) -> None:
        """Insert the samples of a dataset that only workers can read."""
        bulk_insert.insert_dataset(self._database, row.id, list(read()))

    def _provenance(
        self,
        row: JobRow,
        spec: Mapping[str, Any],
        engine: EngineClient,
        runner: Runner,
        *,
        structure: ModelStructure,
        steering: Steering,
    ) -> Provenance | None:
        capture = CaptureSpec.model_validate(spec["capture"]) if spec["capture"] else None
        if capture is None:
            return None
        names = captured_hooks(capture, structure)
        check_capture(capture, names, structure)
        saes = saes_of(self._database, capture, row.model, structure, self._store)
        readouts = readouts_of(self._database, capture, row.model, structure)
        names += [*saes, *readouts]
        if row.hooks != names and row.kind != chat_job.BATCH:
            with self._database.write() as session:
                jobs.set_hooks(session, row.id, names)
        return Provenance(
            structure=structure,
            tokenizer_sha256=tokenizer_sha256(engine.tokenizer),
            template_sha256=template_sha256(engine.tokenizer),
            capture=capture,
            hooks=names,
            saes=saes,
            readouts=readouts,
            resolved=hooks.resolved(capture.hooks, capture.layers, structure),
            markup=markup_of(spec, engine.tokenizer),
            steering=steering,
            takes_turns=runner.takes_turns,
            is_replay=row.kind == "replay",
            tolerance=row.spec.get("tolerance"),
        )
