"""`actograph`: all commands, and the reporting of errors."""

import sys
from typing import Any

import typer

from actograph import __version__
from actograph.cli import batches, jobs, keys, models, ops, sessions
from actograph.cli.analysis import outliers, probe
from actograph.cli.chat import chat
from actograph.cli.demo import demo
from actograph.cli.flags import GlobalOptions, examples
from actograph.cli.output import ERROR, INTERRUPTED, OK, Ended, emit, error_code, note
from actograph.cli.up import up
from actograph.contract.errors import ActographError

#: groups of commands under `--help`
START, JOBS, OPERATE = "Start", "Jobs and results", "Operate"

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Evaluate language models and keep their activations.",
)
app.command(
    rich_help_panel=START,
    epilog=examples(
        "actograph up --model ./my-model",
        "actograph up --home ~/lab --model q=Qwen/Qwen3-0.6B --data-root ~/data",
        "actograph up --model ./my-model --workers 2 --device cuda:0,cuda:1",
    ),
)(up)
app.command(rich_help_panel=START, epilog=examples("actograph demo --limit 50"))(demo)
app.command(rich_help_panel=JOBS, epilog=examples("actograph chat 'What is 3 + 4?' --max-tokens 64"))(chat)
app.command(rich_help_panel=JOBS)(jobs.estimate)
app.add_typer(jobs.app, name="jobs", rich_help_panel=JOBS)
app.command(
    "eval",
    rich_help_panel=JOBS,
    epilog=examples(
        "actograph eval gsm8k --dataset test.jsonl --limit 100 --capture resid_post@all",
        "actograph eval gsm8k --condition plain --condition 'EP02:suffix=This matters to me.'",
        "actograph eval additions.yaml --epochs 4 --temperature 0.8",
    ),
)(jobs.evaluate)
app.add_typer(batches.app, name="batches", rich_help_panel=JOBS)
app.add_typer(sessions.app, name="sessions", rich_help_panel=JOBS)
app.command(rich_help_panel=JOBS, epilog=examples("actograph outliers layers.safetensors"))(outliers)
app.command(rich_help_panel=JOBS, epilog=examples("actograph probe matrix.npz --kind ridge"))(probe)
app.command(rich_help_panel=OPERATE, epilog=examples("actograph smoke http://box:8420"))(ops.smoke)
app.command(rich_help_panel=OPERATE)(ops.workers)
app.add_typer(models.app, name="models", rich_help_panel=OPERATE)
app.add_typer(ops.queue, name="queue", rich_help_panel=OPERATE)
app.add_typer(ops.store, name="store", rich_help_panel=OPERATE)
app.add_typer(keys.app, name="keys", rich_help_panel=OPERATE)


def _print_version(wanted: bool) -> None:
    if wanted:
        emit(f"actograph {__version__}")
        raise typer.Exit


@app.callback()
def common(
    ctx: typer.Context,
    *,
    url: str | None = typer.Option(
        None, envvar="ACTOGRAPH_URL", help="URL of the service. (default: http://127.0.0.1:8420)"
    ),
    api_key: str | None = typer.Option(None, envvar="ACTOGRAPH_API_KEY", help="API key to send."),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error."),
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Evaluate language models and keep their activations."""
    options = ctx.ensure_object(GlobalOptions)
    options.url, options.api_key, options.debug = url, api_key, debug


def main(arguments: list[str] | None = None) -> int:
    """Run a command line and return the exit status."""
    options = GlobalOptions()
    typed = sys.argv[1:] if arguments is None else arguments
    try:
        code = app(args=typed, prog_name="actograph", obj=options, standalone_mode=False)
    except Ended as ended:
        return ended.code
    except SystemExit as ended:  # raised by the options for completion
        return int(ended.code or 0)
    except _UsageError as error:
        return _tell_usage(error)
    except typer.Abort:  # Ctrl-C
        return INTERRUPTED
    except (ActographError, OSError) as error:
        if options.debug:
            raise
        text = _one_line(error)
        if isinstance(error, ActographError) and error.status == 401:
            text = f"{text.removesuffix('.')}; set ACTOGRAPH_API_KEY or use --api-key"
        note(f"error: {text}")
        return error_code(error)
    return code if isinstance(code, int) else OK


#: click's usage error; newer versions of typer contain a click of their own
_UsageError: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "UsageError"
)


def _tell_usage(error: Any) -> int:
    """Report a usage error on one line; a group without a command shows its help.

    Returns 1 and not click's 2, which means "cancelled" here.
    """
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
        return ERROR
    message = " ".join(str(error.format_message()).split()).removesuffix(".")
    command = error.ctx.command_path if error.ctx is not None else "actograph"
    note(f"error: {message[:1].lower()}{message[1:]}; see: {command} --help")
    return ERROR


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    else:
        text = str(error)
    return " ".join(text.split())


if __name__ == "__main__":
    sys.exit(main())
