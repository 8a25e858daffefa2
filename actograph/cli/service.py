"""`actograph service`: the programs of a service that is spread over several processes or boxes."""

import os

import typer

from actograph.cli.shell import Shell, command
from actograph.contract.roles import Role

app = typer.Typer(
    no_args_is_help=True,
    help="Run one program of the service, configured by ACTOGRAPH_* variables. `up` runs all of them.",
)


def api(_: Shell) -> None:
    """Serve the API and the page, until SIGTERM."""
    _become("api")


def upkeep(_: Shell) -> None:
    """Requeue samples of dead workers, end overdue jobs, and remove expired data, until SIGTERM."""
    _become("storage.upkeep")


def analysis(_: Shell) -> None:
    """Run analyses of stored sessions, until SIGTERM. Needs no GPU."""
    _become("worker.analysis")


def migrate(
    _: Shell,
    *,
    check: bool = typer.Option(False, "--check", help="Only compare; exit status 1 if the schema differs."),
    now: bool = typer.Option(False, "--now", help="Do not wait for workers of other versions to end."),
) -> None:
    """Migrate the database to the schema of this version."""
    _become("storage.migrate", *["--check"] * check, *["--now"] * now)


def create_key(
    _: Shell,
    name: str = typer.Argument(help="Name of the key."),
    *,
    role: Role = typer.Option(Role.ADMIN, help="Role of the key."),
    owner: str | None = typer.Option(None, help="Owner of its jobs and sessions."),
) -> None:
    """Create an API key in the database, without a running service, and print it."""
    owned = [] if owner is None else [f"--owner={owner}"]
    _become("api.keys", "create", f"--role={role.value}", *owned, "--", name)


for _name, _function in (
    ("api", api),
    ("upkeep", upkeep),
    ("analysis", analysis),
    ("migrate", migrate),
    ("create-key", create_key),
):
    command(app, _name, formats=False)(_function)


def _become(module: str, *arguments: str) -> None:
    """Replace this process, so that a supervisor's signals reach the program itself."""
    from actograph.stack.programs import SERVER_PACKAGES, program, program_environment, require_installed

    require_installed(SERVER_PACKAGES)
    line = program(module, *arguments)
    os.execve(line[0], line, program_environment())
