"""`actograph`: all commands, and the reporting of errors."""

import re
import sys
from functools import cache
from typing import Any

import typer

from actograph import __version__
from actograph.cli import (
    analysis,
    batches,
    deploy,
    experiment,
    job_flags,
    jobs,
    models,
    ops,
    patch,
    saes,
    service,
    sessions,
    up,
    upkeep,
    vectors,
    worker,
)
from actograph.cli.chat import chat
from actograph.cli.demo import demo
from actograph.cli.shell import ERROR, INTERRUPTED, OK, GlobalOptions, command, emit, error_code, note
from actograph.contract.errors import ActographError

#: the beginning of what rich would take for markup
_BRACKET = re.compile(r"\[(?=[a-z#/@])")
#: groups of commands under `--help`
START, JOBS, OPERATE = "Start", "Jobs and results", "Operate"

_EXAMPLES = {
    "up": (
        "actograph up Qwen/Qwen3-0.6B",
        "actograph up --model ./my-model",
        "actograph up --home ~/lab --model q=Qwen/Qwen3-0.6B --data-root ~/data",
        "actograph up --model ./my-model --workers 2 --device cuda:0,cuda:1",
    ),
    "worker": ("actograph worker --model Qwen/Qwen3-0.6B --drain --max-idle 600",),
    "drain": ("actograph drain night.yaml --model Qwen/Qwen3-0.6B --out /outputs/night",),
    "eval": (
        "actograph eval gsm8k --dataset test.jsonl --limit 100 --capture resid_post@all",
        "actograph eval gsm8k --condition plain --condition 'EP02:suffix=This matters to me.'",
        "actograph eval additions.yaml --epochs 4 --temperature 0.8",
    ),
}

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Evaluate language models and keep their activations.",
)
command(app, "up", up.FLAGS, _EXAMPLES["up"], panel=START, formats=False)(up.up)
command(app, "drain", up.FLAGS, _EXAMPLES["drain"], panel=OPERATE)(up.drain)
command(app, "open", None, ["actograph open", "actograph open job_3fa2"], panel=START, formats=False)(
    up.open_page
)
command(app, "demo", None, ["actograph demo --limit 50"], panel=START, formats=False)(demo)
command(app, "chat", None, ["actograph chat 'What is 3 + 4?' --max-tokens 64"], panel=JOBS)(chat)
command(app, "estimate", job_flags.job_options(), panel=JOBS)(jobs.estimate)
app.add_typer(jobs.app, name="jobs", rich_help_panel=JOBS)
command(app, "eval", job_flags.job_options(jobs.NOT_OF_EVAL), _EXAMPLES["eval"], panel=JOBS)(jobs.evaluate)
command(app, "patch", patch.FLAGS, patch.EXAMPLES, panel=JOBS)(patch.patch)
command(app, "run", None, ["actograph run tools.yaml --dry-run"], panel=JOBS)(experiment.run)
command(app, "report", None, ["actograph report job_3fa2 job_81c0 --out night.html"], panel=JOBS)(
    experiment.report
)
command(app, "schema", None, ["actograph schema job"], panel=JOBS, formats=False)(experiment.schema)
app.add_typer(batches.app, name="batches", rich_help_panel=JOBS)
app.add_typer(sessions.app, name="sessions", rich_help_panel=JOBS)
app.add_typer(analysis.app, name="analyse", rich_help_panel=JOBS)
app.add_typer(vectors.app, name="vectors", rich_help_panel=JOBS)
app.add_typer(saes.app, name="saes", rich_help_panel=JOBS)
app.add_typer(deploy.app, name="deploy", rich_help_panel=OPERATE)
command(app, "doctor", up.FLAGS, ["actograph doctor --model ./my-model"], panel=OPERATE)(upkeep.doctor)
command(app, "backup", None, ["actograph backup /mnt/backup/lab"], panel=OPERATE)(upkeep.backup)
command(app, "restore", None, ["actograph restore /mnt/backup/lab --home ~/again"], panel=OPERATE)(
    upkeep.restore
)
app.command(
    "lm-eval",
    rich_help_panel=JOBS,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Examples:\n\n$ actograph lm-eval --model_args model=demo,capture=resid_post@all --tasks gsm8k",
)(jobs.lm_eval)
command(app, "smoke", None, ["actograph smoke http://box:8420"], panel=OPERATE)(ops.smoke)
command(app, "worker", None, _EXAMPLES["worker"], panel=OPERATE, formats=False)(worker.worker)
app.add_typer(service.app, name="service", rich_help_panel=OPERATE)
command(app, "workers", panel=OPERATE)(ops.workers)
app.add_typer(models.app, name="models", rich_help_panel=OPERATE)
app.add_typer(ops.queue, name="queue", rich_help_panel=OPERATE)
app.add_typer(ops.store, name="store", rich_help_panel=OPERATE)
app.add_typer(ops.keys, name="keys", rich_help_panel=OPERATE)


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
    source = ctx.get_parameter_source("url")
    options.has_url_flag = source is not None and source.name == "COMMANDLINE"


@cache
def _parser() -> Any:
    """The parser of all commands, built once."""
    return _without_markup(typer.main.get_command(app))


def _without_markup(command: Any) -> Any:
    """Let rich show help texts as they are: it would take `[batch, width]` for markup and show nothing."""
    for shown, field in [(command, "help"), (command, "epilog"), *((one, "help") for one in command.params)]:
        if text := getattr(shown, field, None):
            setattr(shown, field, _BRACKET.sub(r"\\[", text))
    for inner in getattr(command, "commands", {}).values():
        _without_markup(inner)
    return command


def main(arguments: list[str] | None = None) -> int:
    """Run a command line and return the exit status."""
    options = GlobalOptions()
    typed = sys.argv[1:] if arguments is None else arguments
    try:
        code = _parser()(args=typed, prog_name="actograph", obj=options, standalone_mode=False)
    except SystemExit as ended:  # raised by the options for completion
        return int(ended.code or 0)
    except _UsageError as error:
        return _tell_usage(error)
    except typer.Abort:  # Ctrl-C
        return INTERRUPTED
    except (ActographError, OSError) as error:
        if options.debug:
            raise
        text = str(error)
        if isinstance(error, OSError) and error.strerror:
            text = f"{error.strerror}: {error.filename}" if error.filename else error.strerror
        elif isinstance(error, ActographError) and error.status == 401:
            text = f"{text.removesuffix('.')}; set ACTOGRAPH_API_KEY or use --api-key"
        note(f"error: {' '.join(text.split())}")
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


if __name__ == "__main__":
    sys.exit(main())
