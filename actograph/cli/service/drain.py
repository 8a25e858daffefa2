"""`actograph drain`: a service in the foreground that ends when its jobs have ended."""

import os
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli import exit_codes
from actograph.cli.flags.options import FormatOption
from actograph.cli.output.output import Format, emit, note
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.client import Client
    from actograph.contract.resources import Job

#: pause between two looks at the queue
LOOK_SECONDS = 1.0


def drain(
    model: Annotated[str | None, typer.Option(help="As in `actograph up`. Default: ACTOGRAPH_MODEL.")] = None,
    *,
    home: Annotated[Path | None, typer.Option(help="Home folder of the service.")] = None,
    job: Annotated[
        list[Path] | None, typer.Option(help="Job spec (JSON) to submit first, once. Repeat for more.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the results of all ended jobs.")] = None,
    activations: Annotated[str, typer.Option(help="With --out: none, meta, sampled or all.")] = "all",
    options: Annotated[str, typer.Option(help="More flags of `actograph up`, as one string.")] = "",
    output: FormatOption = Format.TABLE,
) -> None:
    """Start a service, run its waiting jobs, write their results, and exit.

    For rented machines that stop with the command. After a break, run it again: jobs continue, and no spec is
    submitted twice. Exit status 1: a job failed.
    """
    from actograph.client import Client
    from actograph.settings import Settings
    from actograph.stack.stack import require_installed
    from actograph.stack.stack_process import StackProcess

    require_installed()
    specs = [_read(path) for path in job or ()]
    if activations not in ("none", "meta", "sampled", "all"):
        raise InvalidRequest(f"--activations {activations!r} is not none, meta, sampled or all")
    arguments = ["--port=0", *shlex.split(options)]
    arguments += [f"--model={model}"] if model else []
    arguments += [f"--home={home.absolute()}"] if home else []
    key = next(iter(Settings().api_keys), "")
    with _ended_by_sigterm(), StackProcess(arguments, os.environ) as stack, Client(stack.url, key) as client:
        for spec in specs:
            note(f"job {_submitted(client, spec)}")
        _wait(client)
        jobs = [one for one in client.jobs.list() if one.kind != "load"]
        failed = [one for one in jobs if one.status == "failed" or one.progress.failed]
        for one in jobs:
            if out is not None:
                folder = out / one.id
                folder.parent.mkdir(parents=True, exist_ok=True)
                client.jobs.pull_results(one.id, folder, activations=activations)  # type: ignore[arg-type]
            emit(one.model_dump_json() if output is Format.JSON else _line(one))
    if failed:
        raise exit_codes.Ended(exit_codes.ERROR)


def _line(job: "Job") -> str:
    done = job.progress
    return f"{job.id}  {job.status}  {done.completed} of {done.total} completed, {done.failed} failed"


def _read(path: Path) -> dict[str, Any]:
    """Read a job spec.

    Raises:
        InvalidRequest: the file is not a job spec.
    """
    from actograph.cli.flags.job_spec import read_spec
    from actograph.contract.specs import JOB_KINDS
    from actograph.job_requests.assembly import check

    spec = read_spec(str(path))
    check({"model": "any"} | spec if spec.get("kind") in JOB_KINDS else spec)
    return spec


def _submitted(client: "Client", spec: dict[str, Any]) -> str:
    """Submit a spec, unless an earlier drain did. Returns the job's id."""
    from actograph.contract.base import canonical_digest

    mark = f"drain-{canonical_digest(spec)[:16]}"
    known = next(iter(client.jobs.list(tag=mark)), None)
    if known is not None:
        return known.id
    from actograph.contract.specs import JOB_KINDS

    body = dict(spec)
    if "model" not in body and body["kind"] in JOB_KINDS:
        body["model"] = client.models.list()[0].id
    body["tags"] = [*spec.get("tags", []), mark]
    return client.submit(body, idempotency_key=mark).id


def _wait(client: "Client") -> None:
    """Wait until no job is queued or running."""
    shown = -1
    while open_jobs := sum(client.queue.get().jobs.values()):
        if open_jobs != shown:
            note(f"{open_jobs} jobs waiting or running")
            shown = open_jobs
        time.sleep(LOOK_SECONDS)


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """SIGTERM, with which rented machines announce their end, stops the service as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    former = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        note("stopped; run the same command again to continue")
        raise exit_codes.Ended(exit_codes.INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGTERM, former)
