"""A run of an experiment: its folder, and its stages, each of which is done once for its fingerprint.

A run that was broken off goes on where it was: the folder says what is done, and the service takes a job with
the same idempotency key once only.
"""

import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path

from actograph import __version__
from actograph.client import ApiError, Client
from actograph.client.downloads import job_of, sha256_of
from actograph.client.jobs import JobHandle
from actograph.contract.base import canonical_digest
from actograph.contract.errors import ActographError, Conflict
from actograph.contract.model_loads import ModelLoadOptions, ModelLoadRequest
from actograph.contract.operations import Estimate
from actograph.contract.resources import JobStatus
from actograph.experiment.experiment import QUERY_FIELDS, Experiment, Fields, files_of, with_ids
from actograph.report import report

STATE = "run.json"
_LOOK_SECONDS = 0.5
_FAILED = (JobStatus.FAILED, JobStatus.CANCELLED)


class StageFailed(ActographError):
    """A stage of an experiment failed; running it again goes on with what is missing."""


class RunFolder:
    """State and results of one run. Every change is on disk before the next step begins.

    Attributes:
        state: `id`, `stages` (fingerprint and what was made), `jobs` (name -> id), `files` (sha256 -> id).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state: Fields = self._read()

    def _read(self) -> Fields:
        if (self.path / STATE).is_file():
            return dict(json.loads((self.path / STATE).read_text(encoding="utf-8")))
        return {"id": secrets.token_hex(8), "stages": {}, "jobs": {}, "files": {}}

    @contextmanager
    def locked(self, service: str) -> Iterator[None]:
        """Make the folder, and let no other process run the experiment in it.

        With another service than before it begins anew: ids hold for one service.

        Raises:
            Conflict: another process runs it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(f"another process runs the experiment in {self.path}") from None
            self.state = self._read()
            if self.state.setdefault("service", service) != service:
                self.state |= {"service": service, "stages": {}, "jobs": {}, "files": {}}
            self.save()
            yield

    def save(self) -> None:
        """Write the state durably and in one step."""
        aside = self.path / f".{STATE}.new"
        with aside.open("w", encoding="utf-8") as file:
            file.write(json.dumps(self.state, indent=1, sort_keys=True) + "\n")
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self.path / STATE)


class ExperimentRun:
    """An experiment in its run folder.

    Args:
        service: what stands for the service in the run folder, such as its URL.
        origin: the folder of the experiment file, where its datasets lie.
        note: takes one line about each step.
        progress: show bars.
    """

    def __init__(
        self,
        client: Client,
        experiment: Experiment,
        folder: RunFolder,
        origin: Path,
        *,
        service: str,
        note: Callable[[str], None],
        progress: bool = False,
    ) -> None:
        self._client, self._experiment, self._folder, self._origin = client, experiment, folder, origin
        self._service, self._note, self._progress = service, note, progress
        self._bodies, self._analyses = experiment.bodies, experiment.analyses
        self._digests = {
            file: sha256_of(file)
            for body in self._bodies.values()
            for file in files_of(body, origin).values()
        }

    def plan(self, stages: Sequence[str]) -> dict[str, bool]:
        """Stage -> whether it is done."""
        return {stage: self._is_done(stage, self._fingerprint(stage)) for stage in stages}

    def estimates(self) -> Iterator[tuple[str, Estimate]]:
        """The estimate of each job. Datasets are uploaded for it, and deleted again."""
        for name, body in self._bodies.items():
            sent = {field: self._client.files.upload(file).id for field, file in self._files(body)}
            try:
                asked = self._with_model(body) | {field: {"file_id": sent[field]} for field in sent}
                yield name, self._client.jobs.estimate(self._without_savepoints(asked))
            finally:
                for file_id in sent.values():
                    self._client.files.delete(file_id)

    def run(self, stages: Sequence[str]) -> None:
        """Run those stages that are not done.

        Raises:
            StageFailed: a job or the load of the model failed.
            Conflict: another process runs the experiment.
        """
        work = {
            "model": self._model, "evaluate": self._evaluate, "analyse": self._analyse,
            "fetch": self._fetch, "report": self._report,
        }  # fmt: skip
        with self._folder.locked(self._service):
            for stage in stages:
                fingerprint = self._fingerprint(stage)
                if self._is_done(stage, fingerprint):
                    self._note(f"{stage}: done before")
                    continue
                self._note(f"{stage}: running")
                made = {"fingerprint": fingerprint, **work[stage](), "version": __version__}
                made["ids"] = self._known_ids(stage)
                self._folder.state["stages"][stage] = made
                self._folder.save()

    def _is_done(self, stage: str, fingerprint: str) -> bool:
        """Whether a stage was done for the same fields and the same jobs, which the service still has."""
        done = self._folder.state["stages"].get(stage, {})
        if done.get("fingerprint") != fingerprint or done.get("ids", {}) != self._known_ids(stage):
            return False
        return self._on_service.issuperset(done.get("ids", {}).values())

    def _known_ids(self, stage: str) -> dict[str, str]:
        """Name -> id of the jobs that a stage makes or reads, as far as they have run."""
        known = self._folder.state["jobs"]
        return {name: known[name] for name in self._names(stage) if name in known}

    def _names(self, stage: str) -> list[str]:
        if stage == "model":
            return []
        return [*self._bodies, *(self._analyses if stage in ("analyse", "report") else ())]

    @cached_property
    def _on_service(self) -> set[str]:
        """Ids of the jobs with the experiment's tag."""
        return {job.id for job in self._client.jobs.list(tag=self._experiment.name)}

    def _fingerprint(self, stage: str) -> str:
        """Digest of all that a stage depends on: its fields, the service, and the jobs before it."""
        fields = getattr(self._experiment, stage)
        parts = [fields and fields.model_dump(mode="json"), self._service]
        return canonical_digest([*parts, *map(self._mark, self._names(stage))])

    def _mark(self, name: str) -> str:
        """Digest of a job: its fields, its datasets, and the jobs that it reads."""
        if name in self._analyses:
            body = self._analyses[name]
            read = [self._mark(job) for field in QUERY_FIELDS for job in body.get(field, {}).get("jobs", ())]
            return canonical_digest([body, read])
        body = self._bodies[name]
        digests = {field: self._digests[file] for field, file in self._files(body)}
        model = self._experiment.model
        return canonical_digest([body, digests, model and model.model_dump(mode="json")])

    def _files(self, body: Fields) -> list[tuple[str, Path]]:
        return list(files_of(body, self._origin).items())

    def _with_model(self, body: Fields) -> Fields:
        if "model" in body:
            return dict(body)
        if self._experiment.model is not None:
            return body | {"model": self._experiment.model.model_id}
        return body | {"model": self._client.models.only()}

    def _without_savepoints(self, body: Fields) -> Fields:
        """A job with hooks in place of savepoints, which the model has only once it is loaded."""
        capture, model = body.get("capture"), self._experiment.model
        if model is None or not isinstance(capture, dict) or "hooks" not in capture:
            return body
        selectors = {savepoint.name: savepoint.selector for savepoint in model.savepoints}
        hooks = [selectors.get(hook, hook) for hook in capture["hooks"]]
        return body | {"capture": capture | {"hooks": hooks}}

    # stages

    def _model(self) -> Fields:
        """Load the model, unless its last load had the same options."""
        wanted = self._experiment.model
        assert wanted is not None
        loads = (job for job in self._client.jobs.list(kind="load") if job.model == wanted.model_id)
        last = next(loads, None)
        if last is None or last.status in _FAILED or not _has_options(last, wanted):
            options = wanted.options.model_dump(mode="json", exclude_unset=True)
            load = self._client.models.load(wanted.model_id, **options)
        else:
            load = self._client.models.get_load(last.id)
        while not load.status.is_terminal():
            time.sleep(_LOOK_SECONDS)
            load = self._client.models.get_load(load.id)
        if load.status is not JobStatus.COMPLETED:
            reason = load.error.message if load.error else load.status
            raise StageFailed(f"model {load.model} was not loaded: {reason}")
        identity = self._client.models.structure(load.model).identity
        return {"load": load.id, "identity": identity and identity.model_dump(mode="json")}

    def _evaluate(self) -> Fields:
        for name, body in self._bodies.items():
            sent = {field: {"file_id": self._uploaded(file)} for field, file in self._files(body)}
            self._submit(name, self._with_model(body) | sent)
        return self._ended(self._bodies)

    def _analyse(self) -> Fields:
        for name, body in self._analyses.items():
            self._submit(name, with_ids(body, self._ids(self._bodies)))
        return self._ended(self._analyses)

    def _submit(self, name: str, body: Fields) -> None:
        """Submit a job once; what failed in an earlier run is tried again."""
        known = self._folder.state["jobs"]
        key = f"{self._folder.state['id']}-{canonical_digest([name, self._mark(name)])}"
        job = self._client.submit(body, idempotency_key=key)
        if known.get(name) != job.id:
            known[name] = job.id
            self._folder.save()
            self._note(f"  {name}: {job.id}")
        elif _is_incomplete(job):
            self._note(f"  {name}: {job.id}, tried again")
            job.retry()

    def _ended(self, names: Iterable[str]) -> Fields:
        """Wait for jobs. Raises StageFailed."""
        ids = self._ids(names)
        ended = {
            name: self._client.jobs.wait(ids[name], progress=self._progress, check=False) for name in ids
        }
        bad = [f"{name} ({job.id}) {_ending(job)}" for name, job in ended.items() if _is_incomplete(job)]
        if bad:
            raise StageFailed(f"{'; '.join(bad)}; run the experiment again to try them again")
        return {}

    def _ids(self, names: Iterable[str]) -> dict[str, str]:
        known = self._folder.state["jobs"]
        missing = [name for name in names if name not in known]
        if missing:
            raise StageFailed(f"{missing[0]} has not run; run the stages evaluate and analyse first")
        return {name: known[name] for name in names}

    def _uploaded(self, file: Path) -> str:
        """The id of a dataset. What the service has already is not uploaded again."""
        files, digest = self._folder.state["files"], self._digests[file]
        if digest in files and not self._is_there(files[digest]):
            del files[digest]
        if digest not in files:
            alike = (
                one.id
                for one in self._client.files.list(purpose="dataset")
                if (one.filename, one.bytes) == (file.name, file.stat().st_size)
            )
            same = (one for one in alike if sha256(self._client.files.content(one)).hexdigest() == digest)
            found = next(same, None) or self._client.files.upload(file, progress=self._progress).id
            files[digest] = found
            self._folder.save()
        return str(files[digest])

    def _is_there(self, file_id: str) -> bool:
        """Whether the service still has a file. It may have expired, or have been deleted."""
        try:
            self._client.files.get(file_id)
        except ApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    def _fetch(self) -> Fields:
        assert self._experiment.fetch is not None
        folders = {}
        for name, job_id in self._ids(self._bodies).items():
            folder = self._folder.path / "results" / name
            folder.parent.mkdir(exist_ok=True)
            if (former := job_of(folder)) not in (None, job_id):
                # the experiment was edited; the results of the former job are kept, and may be wanted again
                folder.rename(folder.with_name(f"{name}-{former}"))
                if (kept := folder.with_name(f"{name}-{job_id}")).is_dir():
                    kept.rename(folder)
            job = self._client.jobs.get(job_id)
            pulled = job.export(folder, activations=self._experiment.fetch.activations)
            self._note(f"  {name}: {pulled.samples} samples in {folder}")
            folders[name] = str(folder.relative_to(self._folder.path))
        return {"folders": folders}

    def _report(self) -> Fields:
        assert self._experiment.report is not None
        ids = self._ids([*self._bodies, *self._analyses])
        title = self._experiment.report.title or self._experiment.name
        command = f"actograph run ({self._folder.path / STATE} has the ids)"
        made = report.of_jobs(self._client, list(ids.values()), title=title, command=command)
        made.write(self._folder.path / "report.html")
        self._note(f"  {self._folder.path / 'report.html'}")
        return {"file": "report.html"}


def _has_options(load: JobHandle, wanted: ModelLoadRequest) -> bool:
    return ModelLoadOptions.model_validate(load.spec) == wanted.options


def _is_incomplete(job: JobHandle) -> bool:
    return job.status.is_terminal() and (job.status is not JobStatus.COMPLETED or job.progress.failed > 0)


def _ending(job: JobHandle) -> str:
    if job.error is not None:
        return f"{job.status}: {job.error.message}"
    return f"{job.status} with {job.progress.failed} failed samples"
