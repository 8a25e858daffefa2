"""Sources of an analysis command: files, or jobs of the service."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import typer

from actograph.cli.flags import identifiers
from actograph.cli.flags.options import client_of
from actograph.contract.errors import InvalidRequest


def jobs_of(ctx: typer.Context, sources: Sequence[str]) -> list[str]:
    """The jobs that the sources name; [] if all of them are files.

    Raises:
        InvalidRequest: there are both files and jobs.
    """
    jobs = [source for source in sources if source.startswith("job_") and not Path(source).exists()]
    if not jobs:
        return []
    if len(jobs) < len(sources):
        raise InvalidRequest("name either files or jobs")
    with closing(client_of(ctx)) as client:
        return [identifiers.job(client, job) for job in jobs]


def one_file(sources: Sequence[str]) -> Path:
    """The one file among the sources. Raises InvalidRequest if there are several."""
    if len(sources) != 1:
        raise InvalidRequest("name one file, or jobs by their ids (job_...)")
    return Path(sources[0])


def refuse_files_only(**options: object) -> None:
    """Raise InvalidRequest if an option is set that only works on files."""
    for name, value in options.items():
        if value is not None:
            raise InvalidRequest(f"--{name} works on files, not on jobs", param=name)


def refuse_jobs_only(**options: object) -> None:
    """Raise InvalidRequest if an option is set that only works on jobs."""
    for name, value in options.items():
        if value is not None:
            raise InvalidRequest(f"--{name} works on jobs, not on files", param=name)
