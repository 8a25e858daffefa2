"""The results folder of a job as a stream of tar.gz; docs/guides/results.md describes the files."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from actograph import __version__
from actograph.concurrency import each_of
from actograph.contract import resources
from actograph.contract.errors import NotFound, StoreDamaged
from actograph.contract.resources import Sample, SampleStatus
from storage import samples
from storage.artifacts.store import ArtifactStore
from storage.index.database import Database
from storage.results.export.archive import TarGz, new_spool
from storage.results.export.inspect_log import InspectLog
from storage.results.export.lm_eval_files import LmEvalFiles
from storage.results.export.of_condition import Origin, runs
from storage.results.export.plan import ExportPlan
from storage.results.export.sample import Prepared, StoredSample, json_file, json_line, line, prepare, write
from storage.sessions import damage, sessions
from storage.tables.models import SampleRow

#: samples in memory at once; each may have a megabyte of text
PAGE = 32
#: samples whose sessions are read at once, ahead of what is sent
READERS = 8
FORMAT_VERSION = 1


@dataclass(kw_only=True)
class Totals:
    """Contents of the folder."""

    samples: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    sessions: int = 0
    session_bytes: int = 0
    #: unreadable session -> reason
    unreadable_sessions: dict[str, str] = field(default_factory=dict)
    #: of the first session
    origin: Origin = field(default_factory=Origin)

    def count(self, sample: Sample, held: StoredSample) -> None:
        self.samples += 1
        self.failed += sample.status == SampleStatus.FAILED
        self.prompt_tokens += sample.prompt_tokens or 0
        self.generated_tokens += sample.generated_tokens or 0
        if held.session is not None:
            self.sessions += 1
            self.session_bytes += held.session.bytes
            if held.error is not None:
                self.unreadable_sessions[held.session.id] = held.error.message
        if held.manifest is not None and not self.origin.versions:
            first = held.manifest
            self.origin = Origin(first.revision, first.template_sha256, first.versions)


def stream(plan: ExportPlan, database: Database, store: ArtifactStore) -> Iterator[bytes]:
    """The archive in pieces, each made on demand.

    Raises:
        NotFound: the job was deleted meanwhile.
        ServiceUnavailable: the store is unavailable.
    """
    totals = Totals()
    with ExitStack() as spools:
        tar = TarGz(plan.job.id, plan.exported_at)
        dataset = spools.enter_context(new_spool())
        conditions = {
            name: (LmEvalFiles(run, spools), InspectLog(run, spools))
            for name, run in runs(plan.job, plan.results.conditions).items()
        }

        def prepared(found: tuple[Sample, resources.Session | None]) -> Prepared:
            sample, session = found
            name = plan.name_of(sample.sample_index, sample.condition, sample.epoch)
            held = StoredSample.of(store, session, plan.detail)
            return prepare(sample, held, name=name, task=plan.task, detail=plan.detail)

        for one in each_of(prepared, _samples(plan, database), READERS):
            sample, held, name = one.sample, one.held, one.name
            dataset.write(json_line(line(sample, name)))
            for framework in conditions.get(sample.condition or "", ()):
                framework.add(sample)
            yield from write(tar, one, detail=plan.detail)
            totals.count(sample, held)
            if isinstance(held.error, StoreDamaged):
                damage.record(database, held.error)
        yield from tar.add("dataset.jsonl", dataset)
        for frameworks in conditions.values():
            for framework in frameworks:
                for file in framework.files(totals.origin, plan.exported_at):
                    yield from tar.add(*file)
        if plan.comparison is not None:
            yield from tar.add("comparison.json", json_file(plan.comparison.model_dump(mode="json")))
        yield from tar.add("summary.json", json_file(summary(plan, totals)))
        yield tar.end()


def summary(plan: ExportPlan, totals: Totals) -> dict[str, Any]:
    """`summary.json`: the job, its scores, and the content of the folder."""
    job = plan.job
    seconds = None
    if job.started_at is not None:
        seconds = (job.finished_at or plan.exported_at) - job.started_at
    counts = {
        "total": job.progress.total,
        "completed": totals.samples - totals.failed,
        "failed": totals.failed,
        "exported": totals.samples,
        "prompt_tokens": totals.prompt_tokens,
        "generated_tokens": totals.generated_tokens,
        "sessions": totals.sessions,
        "session_bytes": totals.session_bytes,
    }
    return {
        "object": "job.export",
        "format_version": FORMAT_VERSION,
        "complete": job.status.is_terminal(),
        "job_id": job.id,
        "kind": job.kind,
        "status": job.status,
        "task": plan.results.task,
        "model": job.model,
        "revision": totals.origin.revision,
        "conditions": {name: found.model_dump() for name, found in plan.results.conditions.items()},
        "counts": counts,
        "rates": _rates(counts, seconds),
        "times": {
            "created_at": job.created_at,
            "started_at": job.started_at,
            "finished_at": job.finished_at,
            "seconds": seconds,
            "exported_at": plan.exported_at,
        },
        "activations": plan.detail,
        "unreadable_sessions": totals.unreadable_sessions,
        "tags": job.tags,
        "metadata": job.metadata,
        "error": job.error.model_dump(exclude_none=True) if job.error else None,
        "spec": job.spec,
        "versions": {"actograph": __version__, **totals.origin.versions},
    }


def _rates(counts: Mapping[str, int], seconds: int | None) -> dict[str, float | None]:
    completed, exported = counts["completed"], counts["exported"]
    return {
        "failed": counts["failed"] / exported if exported else None,
        "samples_per_hour": 3600 * completed / seconds if seconds else None,
        "generated_tokens_per_second": counts["generated_tokens"] / seconds if seconds else None,
    }


def _samples(plan: ExportPlan, database: Database) -> Iterator[tuple[Sample, resources.Session | None]]:
    """The planned samples with their sessions. No transaction is open between them."""
    for start in range(0, len(plan.positions), PAGE):
        wanted = plan.positions[start : start + PAGE].tolist()
        with database.read() as session:
            statement = sa.select(SampleRow).where(
                SampleRow.job_id == plan.job.id, SampleRow.position.in_(wanted)
            )
            found = [samples.resource(row) for row in session.scalars(statement.order_by(SampleRow.position))]
            if len(found) != len(wanted):
                raise NotFound(f"job {plan.job.id} was deleted while it was exported")
            ids = [sample.session_id for sample in found if sample.session_id is not None]
            rows = sessions.by_ids(session, ids)
            held = {item.id: item for item in sessions.resources_of(session, rows)}
        for sample in found:
            yield sample, held.get(sample.session_id or "")
