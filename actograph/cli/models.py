"""`actograph models`: served models, their structure, and loading."""

import time
from typing import TYPE_CHECKING

import typer

from actograph.cli.flags import FormatOption, QuietOption, connect, examples, name_and_value
from actograph.cli.output import (
    INTERRUPTED,
    Ended,
    Format,
    clean,
    emit,
    emit_list,
    end,
    fields,
    job_status_code,
    note,
    render,
    shorten,
)

if TYPE_CHECKING:
    from actograph.contract.models import ModelStructure

#: pause between two looks at a load, which takes seconds to minutes
LOOK_SECONDS = 0.5

app = typer.Typer(no_args_is_help=True, help="List, load and inspect models.")


@app.command("ls")
def list_models(ctx: typer.Context, quiet: QuietOption = False, output: FormatOption = Format.TABLE) -> None:
    """List the served models."""
    columns = {"MODEL": lambda model: model.id, "STATUS": lambda model: model.status}
    with connect(ctx) as client:
        emit_list(client.models.list(), columns, output, quiet=quiet, everything=True)


@app.command(epilog=examples("actograph models load Qwen/Qwen3-0.6B --dtype bfloat16 --device-map cuda:0"))
def load(
    ctx: typer.Context,
    model: str = typer.Argument(help="A served model, by any of its names."),
    *,
    revision: str | None = typer.Option(None, help="Hub revision."),
    dtype: str | None = typer.Option(None, help="auto, float32, float16 or bfloat16."),
    device_map: str | None = typer.Option(None, help="auto, balanced, sequential, cpu, cuda or cuda:<n>."),
    max_memory: list[str] = typer.Option([], help="Memory for weights: 0=20GiB, cpu=64GiB. Repeat for more."),
    attn_implementation: str | None = typer.Option(None, help="eager, sdpa, flash_attention_2, ..."),
    savepoint: list[str] = typer.Option(
        [], metavar="NAME=HOOK", help="Your own name for a hook point. Repeat for more."
    ),
    output: FormatOption = Format.TABLE,
) -> None:
    """Load a model on a worker, and wait. Exit status 1: the model was refused."""
    points = [name_and_value(text, "--savepoint") for text in savepoint]
    options = {
        "revision": revision,
        "dtype": dtype,
        "device_map": device_map,
        "max_memory": dict(name_and_value(text, "--max-memory") for text in max_memory),
        "attn_implementation": attn_implementation,
        "savepoints": [{"name": name, "selector": selector} for name, selector in points],
    }
    with connect(ctx) as client:
        found = client.models.load(model, **{name: value for name, value in options.items() if value})
        try:
            while not found.status.is_terminal():
                time.sleep(LOOK_SECONDS)
                found = client.models.get_load(found.id)
        except KeyboardInterrupt:
            note(f"the load continues; cancel it with: actograph jobs cancel {shorten(found.id)}")
            raise Ended(INTERRUPTED) from None
    if output is Format.JSON:
        emit(found.model_dump_json())
    elif found.error is None:
        emit(f"{clean(found.model)} {found.status}")
    if found.error is not None:
        note(f"error: {clean(found.error.message)}")
    end(job_status_code(found.status))


@app.command()
def structure(
    ctx: typer.Context,
    model: str | None = typer.Argument(None, help="Served model. Default: the one loaded last."),
    names: bool = typer.Option(False, "--names", help="Include the aliases of each hook."),
    modules: bool = typer.Option(False, "--modules", help="Include module locations."),
    output: FormatOption = Format.TABLE,
) -> None:
    """Show a model's layers, widths, experts and verified hook points."""
    with connect(ctx) as client:
        found = client.models.structure(model)
    if output is Format.JSON:
        emit(found.model_dump_json())
        return
    hooks = [[name, info.location, info.width, info.dtype] for name, info in found.hooks.items()]
    parts = [_facts(found), render(("HOOK", "LOCATION", ">WIDTH", "DTYPE"), hooks)]
    if found.savepoints:
        parts.append(render(("SAVEPOINT", "HOOK"), list(found.savepoints.items())))
    if names:
        aliases = [[name, "  ".join(info.aliases)] for name, info in found.hooks.items()]
        parts.append(render(("HOOK", "OTHER NAMES"), aliases))
    if found.unavailable:
        parts.append(render(("UNAVAILABLE", "REASON"), list(found.unavailable.items())))
    if modules:
        tensors = [(location, found.tensor_of(location)) for location in found.module_locations]
        rows = [[location, tensor and tensor.width, tensor and tensor.dtype] for location, tensor in tensors]
        parts.append(render(("MODULE LOCATION", ">WIDTH", "DTYPE"), rows))
    emit("\n\n".join(parts))


def _facts(found: "ModelStructure") -> str:
    values = {
        "model": found.model,
        "revision": found.revision,
        "architecture": found.architecture,
        "layers": found.num_layers,
        "hidden size": found.hidden_size,
        "vocabulary": found.vocab_size,
        "experts": f"{found.num_experts}, {found.experts_per_token} per token" if found.num_experts else "",
        "context": found.context_length,
        "parameters": found.num_parameters,
        "dtype": found.dtype,
        "device": found.device,
        "engine": f"traced: {found.engine_reason}" if found.engine_reason else found.engine,
        "chat template": "yes" if found.chat_template else "no",
    }
    return fields(values, 14)
