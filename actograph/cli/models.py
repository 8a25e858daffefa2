"""`actograph models`: served models, their structure, and loading."""

import time
from typing import TYPE_CHECKING, Any

import typer

from actograph.cli.flags import QuietOption, model_with, name_and_value
from actograph.cli.shell import Shell, command, end, job_status_code, note, on_interrupt
from actograph.short_texts import shorten
from actograph.tables import clean, describe

if TYPE_CHECKING:
    from actograph.contract.models import ModelStructure

#: pause between two looks at a load, which takes seconds to minutes
LOOK_SECONDS = 0.5

app = typer.Typer(no_args_is_help=True, help="List, load and inspect models.")


@command(app, "ls")
def list_models(shell: Shell, quiet: QuietOption = False) -> None:
    """List the served models."""
    shell.rows(
        shell.client.models.list(), ["model=id", "status", "base", "adapter"], quiet=quiet, everything=True
    )


@command(app, "load", examples=["actograph models load Qwen/Qwen3-0.6B --dtype bfloat16 --device-map cuda:0"])
def load(
    shell: Shell,
    model: str = typer.Argument(help="A served model, by any of its names."),
    *,
    adapter: str | None = typer.Option(None, help="LoRA of the model, by folder, Hub id or name."),
    revision: str | None = typer.Option(None, help="Hub revision."),
    adapter_revision: str | None = typer.Option(None, help="Hub revision of the adapter."),
    dtype: str | None = typer.Option(None, help="auto, float32, float16 or bfloat16."),
    device_map: str | None = typer.Option(None, help="auto, balanced, sequential, cpu, cuda or cuda:<n>."),
    max_memory: list[str] = typer.Option([], help="Memory for weights: 0=20GiB, cpu=64GiB. Repeat for more."),
    attn_implementation: str | None = typer.Option(None, help="eager, sdpa, flash_attention_2, ..."),
    savepoint: list[str] = typer.Option(
        [], metavar="NAME=HOOK", help="Your own name for a hook point. Repeat for more."
    ),
) -> None:
    """Load a model on a worker, and wait. Exit status 1: the model was refused."""
    points = [name_and_value(text, "--savepoint") for text in savepoint]
    options = {
        "revision": revision,
        "adapter_revision": adapter_revision,
        "dtype": dtype,
        "device_map": device_map,
        "max_memory": dict(name_and_value(text, "--max-memory") for text in max_memory),
        "attn_implementation": attn_implementation,
        "savepoints": [{"name": name, "selector": selector} for name, selector in points],
    }
    models = shell.client.models
    model = model if adapter is None else model_with(model, adapter)
    found = models.load(model, **{name: value for name, value in options.items() if value})
    with on_interrupt(f"the load continues; cancel it with: actograph jobs cancel {shorten(found.id)}"):
        while not found.status.is_terminal():
            time.sleep(LOOK_SECONDS)
            found = models.get_load(found.id)
    if shell.json or found.error is None:
        shell.show(found, lambda found: f"{clean(found.model)} {found.status}")
    if found.error is not None:
        note(f"error: {clean(found.error.message)}")
    end(job_status_code(found.status))


@command(app)
def structure(
    shell: Shell,
    model: str | None = typer.Argument(None, help="Served model. Default: the one loaded last."),
    names: bool = typer.Option(False, "--names", help="Include the aliases of each hook."),
    modules: bool = typer.Option(False, "--modules", help="Include module locations."),
) -> None:
    """Show a model's layers, widths, experts and verified hook points."""
    hidden = ["identity", "module_tensors", "proofs", "devices", *([] if modules else ["module_locations"])]

    def text(found: "ModelStructure") -> str:
        hooks = found.hooks
        if not names:
            hooks = {name: info.model_copy(update={"aliases": []}) for name, info in hooks.items()}
        tensors: dict[str, Any] = {name: found.tensor_of(name) or {} for name in found.module_locations}
        return describe(found, hidden, hooks=hooks, module_locations=tensors)

    shell.show(shell.client.models.structure(model), text)
