"""Follow a job to its end and say how it went."""

from dataclasses import dataclass

from actograph.cli import exit_codes
from actograph.cli.output import comparison_tables, job_tables, tables
from actograph.cli.output.output import Format, emit, emit_json_lines, note
from actograph.client import Client
from actograph.client.event_stream import LAST_EVENTS
from actograph.contract.resources import Event, Job, JobStatus
from actograph.progress import RateMeter, view

_STATUS_OF = {
    "job.started": "in_progress",
    "job.finalizing": "finalizing",
    "job.completed": "completed",
    "job.failed": "failed",
    "job.cancelling": "cancelling",
    "job.cancelled": "cancelled",
    "job.retried": "queued",
}


@dataclass
class Watched:
    """State gathered from events, with times by the service's clock."""

    started_at: float | None = None
    last_progress_at: float | None = None
    done: int = 0

    @property
    def samples_per_second(self) -> float | None:
        """Over the whole run, the first sample's wait included."""
        if self.started_at is None or self.last_progress_at is None or not self.done:
            return None
        span = self.last_progress_at - self.started_at
        return self.done / span if span > 0 else None


def follow(client: Client, job: Job) -> Watched:
    """Show a job's progress until it ends."""
    watched, meter = Watched(), RateMeter()
    status = job_tables.status_text(job) if job.status is JobStatus.QUEUED else str(job.status)
    so_far = job.progress
    done, failed, total = 0, 0, so_far.total
    with view() as shown:
        if not job.status.is_terminal():
            ended = so_far.completed + so_far.failed
            shown.update(status, ended, so_far.failed, total, job.samples_per_second)
        for event in client.jobs.events(job.id):
            status = _STATUS_OF.get(event.event, status)
            done, failed, total = _numbers(event, done, failed, total)
            if event.event == "job.started":
                watched.started_at = event.created_at
                meter.add(event.created_at, done)
            if event.event == "job.progress":
                watched.last_progress_at, watched.done = event.created_at, done
                meter.add(event.created_at, done)
            # what is over need not be told again, only how it went
            if not job.status.is_terminal() or event.event in LAST_EVENTS:
                shown.update(status, done, failed, total, meter.per_second)
    return watched


def conclude(client: Client, job_id: str, output: Format = Format.TABLE) -> int:
    """Print an ended job's results and return the exit code that tells how it ended.

    Results of several conditions are followed by what each differs from the first. As JSON these are
    two lines, a `job.results` and a `job.comparison`.
    """
    job = client.jobs.get(job_id)
    if job.progress.completed:
        _show_results(client, job, output)
    if job.progress.failed and job.status is not JobStatus.FAILED:
        note(
            f"{job.progress.failed} of {job.progress.total} samples failed; "
            f"the reasons: actograph jobs samples {tables.shorten(job.id)} --status failed"
        )
    if job.error is not None:
        note(f"job {job.id} {job.status}: {' '.join(job.error.message.split())}")
    else:
        note(f"job {job.id} {job.status}")
    return exit_codes.of_job(job.status)


def _show_results(client: Client, job: Job, output: Format) -> None:
    results = client.jobs.results(job.id)
    compared = None
    if job.kind == "evaluation" and len(job.spec.get("conditions") or ()) > 1:
        compared = client.jobs.comparison(job.id)
    if output is Format.JSON:
        emit_json_lines([results, *([compared] if compared else [])])
    else:
        if results.conditions:
            emit(job_tables.render_results(results, job.spec.get("num_fewshot")))
        if compared is not None:
            emit("")
            emit(comparison_tables.render(compared))
    truncated = sum(condition.truncated for condition in results.conditions.values())
    if truncated:
        # an extract job generates nothing: there it is the text that was too long
        ending = (
            "texts were cut to the model's context"
            if job.kind == "extract"
            else "samples ended at max_tokens"
        )
        note(f"{truncated} of {job.progress.completed} {ending}")
    for name, condition in results.conditions.items():
        if (use := condition.tool_use) is not None:
            note(
                f"{name}: {use.calling} of {use.samples} samples called tools, {use.calls} calls, "
                f"{use.errors} of them answered with an error"
            )


def _numbers(event: Event, done: int, failed: int, total: int) -> tuple[int, int, int]:
    data = event.data
    if isinstance(data.get("completed"), int) and isinstance(data.get("failed"), int):
        done, failed = data["completed"] + data["failed"], data["failed"]
    if isinstance(data.get("total"), int):
        total = data["total"]
    return done, failed, total
