"""`actograph up`: broker, API and workers on this machine, in the foreground."""

from pathlib import Path

import typer

from actograph.cli.flags import load_settings
from actograph.cli.output import INTERRUPTED, Ended, emit, note
from actograph.contract.errors import InvalidRequest

#: prefixes of folders; other models are Hub ids
_PATH_STARTS = ("/", "./", "../", "~")


def up(
    *,
    home: Path | None = typer.Option(None, help="Data folder. (default: ~/.actograph)"),
    model: str | None = typer.Option(None, help="Hub id or folder of the model, or NAME=<id or folder>."),
    port: int | None = typer.Option(None, help="Port of the API; 0 picks a free one. (default: 8420)"),
    host: str | None = typer.Option(None, help="Address of the API. (default: 127.0.0.1)"),
    api_processes: int | None = typer.Option(
        None, min=1, max=64, help="Number of API processes. (default: 1)"
    ),
    data_root: list[str] = typer.Option([], help="Folder that jobs may read datasets from. Repeat for more."),
    workers: int = typer.Option(1, min=1, max=64, help="Number of workers; each loads the model."),
    device: str | None = typer.Option(
        None, help="cpu, cuda, cuda:1; commas assign one per worker. (default: auto)"
    ),
    dtype: str | None = typer.Option(None, help="float32, float16, bfloat16 or auto. (default: auto)"),
    threads: int | None = typer.Option(None, help="CPU threads per worker. (default: torch's)"),
    log_level: str | None = typer.Option(None, help="debug, info, warning or error."),
) -> None:
    """Run the service until Ctrl-C. Workers then finish their running samples.

    Prints `ready: URL` once the service accepts requests. ACTOGRAPH_* variables set the defaults.
    A second Ctrl-C stops everything at once.
    """
    from actograph.contract.models import parse_served
    from actograph.stack.up import run

    settings = load_settings(
        home=home,
        model=model,
        port=port,
        host=host,
        api_processes=api_processes,
        data_roots=tuple(data_root) or None,
        device=device,
        dtype=dtype,
        threads=threads,
        log_level=log_level,
    )
    if not settings.model:
        raise InvalidRequest(
            "no model: set --model to a hub id (Qwen/Qwen3-0.6B), a folder, or NAME=<id or folder>"
        )
    source = parse_served(settings.model).source
    if source.startswith(_PATH_STARTS) and not Path(source).is_dir():
        raise InvalidRequest(f"--model {settings.model}: no folder {source!r}")
    if run(settings, workers, emit=emit, report=note):
        raise Ended(INTERRUPTED)
