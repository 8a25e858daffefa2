"""Stages of an experiment: each is done once for its fingerprint, and resumed where it was broken off."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actograph import __version__
from actograph.client import Client
from actograph.contract.errors import ActographError, InvalidRequest, ModelRefused
from actograph.contract.resources import Estimate, JobStatus
from actograph.experiment import report
from actograph.experiment.run_folder import RunFolder, digest_of, fingerprint
from actograph.experiment.spec import STAGES, Experiment, analysed, dataset_file, job_bodies

if TYPE_CHECKING:
    from actograph.client.blocking.resources.jobs import JobHandle

DATASETS = ("dataset", "fewshot_dataset")
_LOOK_SECONDS = 0.5
#: model loads that are looked through
_RECENT = 100
_FAILED = (JobStatus.FAILED, JobStatus.CANCELLED)
#: jobs and uploads of a run are found again by these, also if their ids were not written down
_RUN_TAG, _JOB_TAG = "run-", "job-"


class StageFailed(ActographError):
    """A stage of the experiment failed."""

    code = "stage_failed"


@dataclass
class Run:
    """One experiment in its run folder.

    Args:
        origin: folder of the experiment file; dataset files are relative to it.
        note: takes one line about each step.
        progress: show progress bars.
    """

    client: Client
    experiment: Experiment
    folder: RunFolder
    origin: Path
    note: Callable[[str], None]
    progress: bool = False

    def __post_init__(self) -> None:
        stage = self.experiment.evaluate
        self.bodies = job_bodies(stage) if stage is not None else {}
        self.fingerprints = {
            name: fingerprint(body, *self._inputs(body)) for name, body in self.bodies.items()
        }

        self.analyses: dict[str, str] = {}
        for name, job in self.experiment.analyse.jobs.items() if self.experiment.analyse is not None else ():
            read = [self.fingerprints[one] for one in analysed(self.experiment, job)]
            self.analyses[name] = fingerprint(job.model_dump(mode="json"), read)

    def _inputs(self, body: dict[str, Any]) -> list[str | None]:
        files = [dataset_file(body, field, self.origin) for field in DATASETS]
        return [None if file is None else digest_of(file) for file in files]

    def plan(self, stages: Sequence[str]) -> dict[str, str]:
        """Stage -> `done` or `to do`."""
        return {
            stage: "done" if self.folder.is_done(stage, self.fingerprint(stage)) else "to do"
            for stage in STAGES
            if stage in stages
        }

    def estimate(self, name: str) -> Estimate:
        """Estimate a job. Its dataset files are uploaded for it and deleted again."""
        body, sent = self._without_savepoints(self.bodies[name]), []
        try:
            for field in DATASETS:
                if (file := dataset_file(body, field, self.origin)) is not None:
                    sent.append(self.client.files.upload(file).id)
                    body[field] = {"file_id": sent[-1]}
            return self.client.jobs.estimate(body | {"model": body.get("model") or self._only_model()})
        finally:
            for file_id in sent:
                self.client.files.delete(file_id)

    def _without_savepoints(self, body: dict[str, Any]) -> dict[str, Any]:
        """A job's body with hook points for the savepoints of a model that may not be loaded yet."""
        capture = body.get("capture")
        if self.experiment.model is None or not isinstance(capture, dict) or "hooks" not in capture:
            return dict(body)
        named = {point.name: point.selector for point in self.experiment.model.savepoints}
        return body | {"capture": capture | {"hooks": [named.get(hook, hook) for hook in capture["hooks"]]}}

    def fingerprint(self, stage: str) -> str:
        """Digest of a stage's fields and of everything that it depends on."""
        own = getattr(self.experiment, stage)
        fields = own.model_dump(mode="json") if own is not None else None
        # the tunnel to a box may have another port the next time
        service = self.experiment.deploy.box or self.client.base_url
        if stage == "deploy":
            return fingerprint(fields, service)
        if stage == "model":
            return fingerprint(fields, self.fingerprint("deploy"))
        jobs = fingerprint(self.fingerprints, service)
        if stage == "evaluate":
            return jobs
        if stage == "analyse":
            return fingerprint(self.analyses, jobs)
        return fingerprint(fields, jobs, self.analyses, self.experiment.name)

    def run(self, stages: Sequence[str]) -> None:
        """Run the stages that are not done.

        Raises:
            StageFailed: a job or a model load failed; run again to retry.
        """
        work = {
            "deploy": self._deploy, "model": self._model, "evaluate": self._evaluate,
            "analyse": self._analyse, "fetch": self._fetch, "report": self._report,
        }  # fmt: skip
        with self.folder.locked():
            for stage in STAGES:
                if stage not in stages:
                    continue
                now = self.fingerprint(stage)
                if self.folder.is_done(stage, now):
                    self.note(f"{stage}: done before")
                    continue
                self.note(f"{stage}: running")
                self.folder.done(stage, now, **work[stage]())

    def _deploy(self) -> dict[str, Any]:
        capabilities = self.client.capabilities()
        # the deployment to a box has run it
        if self.experiment.deploy.smoke and self.experiment.deploy.box is None:
            from actograph.smoke.smoke import Smoke

            Smoke(self.client, lambda step: self.note(f"  {step.step}: {step.outcome}")).run()
        return {"url": self.client.base_url, "service": capabilities.version, "client": __version__}

    def _model(self) -> dict[str, Any]:
        request = self.experiment.model
        assert request is not None
        fields = request.model_dump(mode="json", exclude={"model_id"}, exclude_defaults=True)
        loads = self.folder.state.setdefault("loads", {})
        entry = loads.get(self.fingerprint("model"), {})
        load_id = entry.get("id") or self._load_since(request.model_id, entry.get("before"))
        failed = load_id is not None and self.client.models.get_load(load_id).status in _FAILED
        if load_id is None or failed:
            if failed or "before" not in entry:
                entry = {"before": [one.id for one in self._loads()]}
                loads[self.fingerprint("model")] = entry
                self.folder.save()
            load_id = self.client.models.load(request.model_id, **fields).id
        if entry.get("id") != load_id:
            loads[self.fingerprint("model")] = entry | {"id": load_id}
            self.folder.save()
        while not (load := self.client.models.get_load(load_id)).status.is_terminal():
            time.sleep(_LOOK_SECONDS)
        if load.status is not JobStatus.COMPLETED:
            reason = load.error.message if load.error else str(load.status)
            raise ModelRefused(f"model {request.model_id}: {reason}")
        structure = self.client.models.structure(request.model_id)
        identity = structure.identity.model_dump(mode="json") if structure.identity else None
        return {"load": load_id, "model": structure.model, "identity": identity}

    def _loads(self) -> "list[JobHandle]":
        return list(islice(self.client.jobs.list(kind="load"), _RECENT))

    def _load_since(self, model: str, before: list[str] | None) -> str | None:
        """A load of this run whose id was not written down: one that was not there before."""
        if before is None:
            return None
        return next((one.id for one in self._loads() if one.model == model and one.id not in before), None)

    def _evaluate(self) -> dict[str, Any]:
        # all are submitted first, so that the service can order them
        return self._ended({name: self._submitted(name) for name in self.bodies})

    def _analyse(self) -> dict[str, Any]:
        assert self.experiment.analyse is not None
        ids = self.jobs()
        jobs = {}
        for name, job in self.experiment.analyse.jobs.items():
            read = [ids[one] for one in analysed(self.experiment, job)]
            jobs[name] = self._job_of(self.analyses[name], partial(job.body, read))
        return self._ended(jobs)

    def _ended(self, jobs: "dict[str, JobHandle]") -> dict[str, Any]:
        """Wait for jobs. Returns their ids.

        Raises:
            StageFailed: a job or a sample failed.
        """
        failed = []
        for name, job in jobs.items():
            ended = self.client.jobs.wait(job, progress=self.progress, check=False)
            self.note(f"  {name}: {ended.id} {ended.status}")
            if ended.status is not JobStatus.COMPLETED or ended.progress.failed:
                failed.append(name)
        if failed:
            raise StageFailed(f"jobs failed: {', '.join(failed)}; run again to retry their failed samples")
        return {"jobs": {name: job.id for name, job in jobs.items()}}

    def _submitted(self, name: str) -> "JobHandle":
        return self._job_of(self.fingerprints[name], lambda: self._body(name))

    def _body(self, name: str) -> dict[str, Any]:
        """The spec of a job, with its datasets uploaded."""
        body = dict(self.bodies[name])
        for field in DATASETS:
            file = dataset_file(body, field, self.origin)
            if file is not None:
                body[field] = {"file_id": self._uploaded(file)}
        return body if "model" in body else body | {"model": self._only_model()}

    def _job_of(self, mark: str, body_of: Callable[[], dict[str, Any]]) -> "JobHandle":
        """Return the job of a fingerprint: that of an earlier run if there is one, else a new one."""
        known = self.folder.state["jobs"].get(mark)
        job = self._found(mark) if known is None else self.client.jobs.get(known)
        is_new = job is None
        if job is None:
            body = body_of()
            body = body | {"tags": [*body.get("tags", []), *self._tags(mark)]}
            job = self.client.submit(body, idempotency_key=f"{self.folder.id}-{mark}")
        if known is None:
            self.folder.state["jobs"][mark] = job.id
            self.folder.save()
        return job if is_new or not _can_be_retried(job) else job.retry()

    def _tags(self, mark: str) -> list[str]:
        return [f"{_RUN_TAG}{self.folder.id}", f"{_JOB_TAG}{mark[:16]}"]

    def _found(self, mark: str) -> "JobHandle | None":
        """A job of this run whose id was not written down."""
        run, job = self._tags(mark)
        return next((one for one in self.client.jobs.list(tag=run) if job in one.tags), None)

    def _uploaded(self, file: Path) -> str:
        """Return the id of an upload of a file, made by this run or now."""
        kept = self.folder.keep_input(file)
        # the run's id in the name tells this upload from those of others
        named = kept.with_name(f"{self.folder.id}-{kept.name}")
        uploads: dict[str, str] = self.folder.state["files"]
        if kept.name not in uploads:
            there = (one.id for one in self.client.files.list() if one.filename == named.name)
            if (found := next(there, None)) is None:
                if not named.exists():
                    named.hardlink_to(kept)
                found = self.client.files.upload(named, progress=self.progress).id
                named.unlink()
            uploads[kept.name] = found
            self.folder.save()
        return uploads[kept.name]

    def _only_model(self) -> str:
        if self.experiment.model is not None:
            return self.experiment.model.model_id
        served = [one.id for one in self.client.models.list()]
        if len(served) != 1:
            listed = ", ".join(served) or "none"
            raise InvalidRequest(f"name a model in evaluate.base.model; served: {listed}", param="model")
        return served[0]

    def jobs(self) -> dict[str, str]:
        """Name -> id of the completed jobs of this experiment.

        Raises:
            InvalidRequest: they were not run yet.
        """
        if self.bodies and not self.folder.is_done("evaluate", self.fingerprint("evaluate")):
            raise InvalidRequest("the stage evaluate is not done; run it first")
        return {name: self.folder.state["jobs"][mark] for name, mark in self.fingerprints.items()}

    def _analysis_ids(self) -> dict[str, str]:
        """Name -> id of the analyses that were run."""
        known = self.folder.state["jobs"]
        return {name: known[mark] for name, mark in self.analyses.items() if mark in known}

    def _fetch(self) -> dict[str, Any]:
        assert self.experiment.fetch is not None
        fetched = {}
        for name, job_id in self.jobs().items():
            folder = self.folder.path / "results" / name
            folder.parent.mkdir(exist_ok=True)
            pulled = self.client.jobs.pull_results(
                job_id, folder, activations=self.experiment.fetch.activations
            )
            fetched[name] = str(folder.relative_to(self.folder.path))
            self.note(f"  {name}: {pulled.samples} samples")
        return {"folders": fetched}

    def _report(self) -> dict[str, Any]:
        assert self.experiment.report is not None
        title = self.experiment.report.title or self.experiment.name
        made = report.collect(
            self.client, title, self.jobs() | self._analysis_ids(), self.folder.state["stages"]
        )
        self.folder.write("report.json", report.as_json(made))
        self.folder.write("report.md", report.as_markdown(made))
        self.note(f"  {self.folder.path / 'report.md'}")
        return {"files": ["report.json", "report.md"]}


def _can_be_retried(job: "JobHandle") -> bool:
    """Whether a job ended with failed or missing samples."""
    return job.status in _FAILED or (job.status is JobStatus.COMPLETED and job.progress.failed > 0)
