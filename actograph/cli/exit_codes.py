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
    """Ends the command with a status, without a message.

    Not typer's Exit: `main` could not distinguish it from a usage error.
    """

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def of_job(status: "JobStatus") -> int:
    """Return the exit status for an ended job."""
    return {"completed": OK, "cancelled": CANCELLED}.get(status, ERROR)


def of_error(error: Exception) -> int:
    """Return the exit status for an error."""
    return AUTH if isinstance(error, ActographError) and error.status in (401, 403) else ERROR
