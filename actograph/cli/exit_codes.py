"""Exit statuses; 0, 1, 2 and 4 mean the same as in GitHub's `gh`."""

from typing import TYPE_CHECKING

from actograph.contract.errors import ActographError

if TYPE_CHECKING:
    from actograph.contract.resources import JobStatus

OK = 0
ERROR = 1
CANCELLED = 2
AUTH = 4
INTERRUPTED = 130


class Ended(Exception):
    """The command has said all there is to say and ends with this status.

    Not typer's Exit, which `main` could not tell from a usage error's status 2.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def of_job(status: "JobStatus") -> int:
    """For a job that has ended."""
    return {"completed": OK, "cancelled": CANCELLED}.get(status, ERROR)


def of_error(error: Exception) -> int:
    return AUTH if isinstance(error, ActographError) and error.status in (401, 403) else ERROR
