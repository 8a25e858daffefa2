"""`actograph worker`: one worker on this box for a service that runs elsewhere."""

import os
from typing import Any

import typer

from actograph.cli.flags import ADAPTER, with_adapters
from actograph.cli.shell import Shell, load_settings
from actograph.contract.errors import InvalidRequest


def worker(
    _: Shell,
    *,
    model: str | None = typer.Option(None, help="Hub id or folder of the model, or NAME=<id or folder>."),
    adapter: list[str] = typer.Option([], help=ADAPTER),
    database_url: str | None = typer.Option(
        None, help="Index: postgresql://... (a password is safer in ACTOGRAPH_DATABASE_URL)."
    ),
    artifact_url: str | None = typer.Option(None, help="Store: s3://bucket/prefix or file:///folder."),
    broker_url: str | None = typer.Option(None, help="Redis that wakes workers. (default: none)"),
    device: str | None = typer.Option(None, help="cpu, cuda or cuda:1. (default: auto)"),
    dtype: str | None = typer.Option(None, help="float32, float16, bfloat16 or auto. (default: auto)"),
    tensor_parallel: int | None = typer.Option(
        None, min=1, metavar="N", help="GPUs that share the model. (default: 1)"
    ),
    drain: bool = typer.Option(False, "--drain", help="Exit with 0 once no job of the model is open."),
    max_idle: float | None = typer.Option(
        None, min=0, metavar="SECONDS", help="Exit with 0 after so long without work."
    ),
    grace: float | None = typer.Option(
        None,
        min=0.1,
        metavar="SECONDS",
        help="Time to end and store samples after SIGTERM. (default: 15)",
    ),
) -> None:
    """Join a service from any box: claim samples of its index, and store results in its store.

    Makes outgoing connections only. ACTOGRAPH_* variables set the defaults. SIGTERM stops it: it gives back
    samples that do not end within --grace, and other workers run them.
    """
    from actograph.stack.programs import program, require_installed
    from actograph.stack.up import environment_of

    require_installed()
    given: dict[str, Any] = {
        "model": model,
        "database_url": database_url,
        "artifact_url": artifact_url,
        "device": device,
        "dtype": dtype,
        "tensor_parallel": tensor_parallel,
        "stop_grace_seconds": grace,
        # no worker of a cluster has a Redis of its own
        "broker_url": broker_url if broker_url is not None else os.environ.get("ACTOGRAPH_BROKER_URL", ""),
    }
    settings = with_adapters(load_settings(**given), adapter)
    if not (settings.model or settings.allowed_models):
        raise InvalidRequest(
            "no model: set --model to a hub id (Qwen/Qwen3-0.6B), a folder, or NAME=<id or folder>"
        )
    options = ["--drain"] if drain else []
    options += [] if max_idle is None else [f"--max-idle={max_idle:g}"]
    command = program("worker", *options)
    # in place of this process, so that a scheduler's signals reach the worker itself
    os.execve(command[0], command, environment_of(settings))
