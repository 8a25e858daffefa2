"""Follow a job to its end and print its results."""

from actograph.cli import exit_codes
from actograph.cli.output import comparison_tables, job_tables, tables
from actograph.cli.output.output import Format, emit, emit_json_lines, note
from actograph.client import Client
from actograph.contract.resources import Job, JobStatus


def watch(client: Client, job_id: str, output: Format = Format.TABLE) -> int:
    """Show a job's progress until it ends, then print its results. Returns the exit status.

    With several conditions, a comparison with the first one follows. As JSON these are two lines, a
    `job.results` and a `job.comparison`.
    """
    job = client.jobs.wait(job_id, progress=True)
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
        # mode prefill generates nothing: there it is the text that was too long
        ending = (
            "texts were cut to the model's context"
            if (job.spec.get("capture") or {}).get("mode") == "prefill"
            else "samples ended at max_tokens"
        )
        note(f"{truncated} of {job.progress.completed} {ending}")
    for name, condition in results.conditions.items():
        if (use := condition.tool_use) is not None:
            note(
                f"{name}: {use.calling} of {use.samples} samples called tools, {use.calls} calls, "
                f"{use.errors} of them answered with an error"
            )
