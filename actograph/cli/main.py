"""`actograph`: every command, and how failures are told."""

import sys
from typing import Annotated

import typer

from actograph import __version__
from actograph.cli import batches, evals, exit_codes, exports, jobs, keys, models, queue, sessions, store
from actograph.cli.benches import PASSED_ON, bench
from actograph.cli.chat import chat
from actograph.cli.comparisons import compare
from actograph.cli.demo import demo
from actograph.cli.estimate import estimate
from actograph.cli.options import GlobalOptions
from actograph.cli.output import emit, note
from actograph.cli.up import up
from actograph.cli.workers import workers
from actograph.contract.errors import ActographError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Evaluate language models and keep their activations.",
)
jobs.app.command()(compare)
jobs.app.command()(exports.export)
app.add_typer(jobs.app, name="jobs")
app.add_typer(evals.app, name="eval")
app.add_typer(batches.app, name="batches")
app.add_typer(exports.app, name="results")
app.add_typer(sessions.app, name="sessions")
app.add_typer(store.app, name="store")
app.add_typer(models.app, name="models")
app.add_typer(queue.app, name="queue")
app.command()(chat)
app.add_typer(keys.app, name="keys")
app.command()(estimate)
app.command()(workers)
app.command()(up)
app.command(context_settings=PASSED_ON)(bench)
app.command()(demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        emit(f"actograph {__version__}")
        raise typer.Exit


@app.callback()
def common(
    ctx: typer.Context,
    *,
    url: Annotated[
        str | None,
        typer.Option(envvar="ACTOGRAPH_URL", help="The service. (default: http://127.0.0.1:8420)"),
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="ACTOGRAPH_API_KEY", help="Key to send.", show_envvar=True)
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Evaluate language models and keep their activations."""
    options = ctx.ensure_object(GlobalOptions)
    options.url, options.api_key, options.debug = url, api_key, debug


def main(arguments: list[str] | None = None) -> int:
    """Run a command line and return the exit status."""
    options = GlobalOptions()
    try:
        app(args=sys.argv[1:] if arguments is None else arguments, prog_name="actograph", obj=options)
    except exit_codes.Ended as ended:
        return ended.code
    except SystemExit as ended:
        # a usage error's 2 means "cancelled" with us
        return exit_codes.ERROR if ended.code == 2 else int(ended.code or 0)
    except (ActographError, OSError) as error:
        if options.debug:
            raise
        note(f"error: {_one_line(error)}")
        return exit_codes.of_error(error)
    return exit_codes.OK


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    else:
        text = str(error)
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
