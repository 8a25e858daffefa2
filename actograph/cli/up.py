"""`actograph up`: broker, API and workers on this machine, in the foreground."""

from pathlib import Path
from typing import Annotated, Any

import typer

from actograph.cli.shell import INTERRUPTED, Shell, emit, end, load_settings, note
from actograph.contract.errors import InvalidRequest

#: settings by their names: type and help
_SETTINGS: dict[str, tuple[Any, str]] = {
    "home": (Path, "Data folder. (default: ~/.actograph)"),
    "model": (str, "Hub id or folder of the model, or NAME=<id or folder>."),
    "port": (int, "Port of the API; 0 picks a free one. (default: 8420)"),
    "host": (str, "Address of the API. (default: 127.0.0.1)"),
    "api_processes": (int, "Number of API processes. (default: 1)"),
    "device": (str, "cpu, cuda, cuda:1; commas assign one per worker. (default: auto)"),
    "dtype": (str, "float32, float16, bfloat16 or auto. (default: auto)"),
    "threads": (int, "CPU threads per worker. (default: torch's)"),
    "log_level": (str, "debug, info, warning or error."),
}
FLAGS = {name: Annotated[kind | None, typer.Option(help=about)] for name, (kind, about) in _SETTINGS.items()}

#: prefixes of folders; other models are Hub ids
_PATH_STARTS = ("/", "./", "../", "~")


def up(
    _: Shell,
    *,
    data_root: list[str] = typer.Option([], help="Folder that jobs may read datasets from. Repeat for more."),
    allow_model: list[str] = typer.Option([], help="A further model that jobs may load. Repeat for more."),
    workers: int = typer.Option(1, min=1, max=64, help="Number of workers; each loads the model."),
    **given: Any,
) -> None:
    """Run the service until Ctrl-C. Workers then finish their running samples.

    Prints `ready: URL` once the service accepts requests. ACTOGRAPH_* variables set the defaults.
    A second Ctrl-C stops everything at once.
    """
    from actograph.contract.models import parse_served
    from actograph.stack.up import run

    settings = load_settings(
        data_roots=tuple(data_root) or None, allowed_models=tuple(allow_model) or None, **given
    )
    served = [text for text in (settings.model, *settings.allowed_models) if text]
    if not served:
        raise InvalidRequest(
            "no model: set --model to a hub id (Qwen/Qwen3-0.6B), a folder, or NAME=<id or folder>; "
            "--allow-model instead starts without one, and the first job loads it"
        )
    for text in served:
        source = parse_served(text).source
        if source.startswith(_PATH_STARTS) and not Path(source).is_dir():
            raise InvalidRequest(f"model {text}: no folder {source!r}")
    end(INTERRUPTED if run(settings, workers, emit=emit, report=note) else 0)
