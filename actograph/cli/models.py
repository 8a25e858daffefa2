"""`actograph models`: served models, their structure, and loading."""

import time
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from actograph.cli import exit_codes
from actograph.cli.flags.options import FormatOption, QuietOption, client_of
from actograph.cli.output import tables
from actograph.cli.output.output import Format, emit, emit_list, note
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.contract.resources import Model, ModelStructure

#: pause between two looks at a load, which takes seconds to minutes
LOOK_SECONDS = 0.5

app = typer.Typer(no_args_is_help=True, help="List, load and inspect models.")


@app.command("ls")
def list_models(ctx: typer.Context, quiet: QuietOption = False, output: FormatOption = Format.TABLE) -> None:
    """List the served models."""
    with closing(client_of(ctx)) as client:
        models = client.models.list()
    emit_list(models, _table, output, quiet=quiet)


@app.command()
def load(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="A served model, by any of its names.")],
    *,
    revision: Annotated[str | None, typer.Option(help="Hub revision.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, float16 or bfloat16.")] = None,
    device_map: Annotated[
        str | None, typer.Option(help="auto, balanced, sequential, cpu, cuda or cuda:<n>.")
    ] = None,
    max_memory: Annotated[
        list[str] | None,
        typer.Option(metavar="DEVICE=SIZE", help="Memory for weights: 0=20GiB, cpu=64GiB. Repeat for more."),
    ] = None,
    attn_implementation: Annotated[
        str | None, typer.Option(help="eager, sdpa, flash_attention_2, ...")
    ] = None,
    savepoint: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=HOOK", help="Your own name for a hook point. Repeat for more."),
    ] = None,
    output: FormatOption = Format.TABLE,
) -> None:
    """Load a model on a worker, and wait. Exit status 1: the model was refused."""
    options = {
        "revision": revision,
        "dtype": dtype,
        "device_map": device_map,
        "max_memory": dict(_pair("--max-memory", text) for text in max_memory or []) or None,
        "attn_implementation": attn_implementation,
        "savepoints": [
            {"name": name, "selector": selector}
            for name, selector in (_pair("--savepoint", text) for text in savepoint or [])
        ],
    }
    with closing(client_of(ctx)) as client:
        found = client.models.load(model, **{name: value for name, value in options.items() if value})
        try:
            while not found.status.is_terminal():
                time.sleep(LOOK_SECONDS)
                found = client.models.get_load(found.id)
        except KeyboardInterrupt:
            note(f"the load continues; cancel it with: actograph jobs cancel {tables.shorten(found.id)}")
            raise exit_codes.Ended(exit_codes.INTERRUPTED) from None
    if output is Format.JSON:
        emit(found.model_dump_json())
    elif found.error is None:
        emit(f"{tables.clean(found.model)} {found.status}")
    if found.error is not None:
        note(f"error: {tables.clean(found.error.message)}")
    if code := exit_codes.of_job(found.status):
        raise exit_codes.Ended(code)


def _table(models: "Sequence[Model]") -> str:
    return tables.render(("MODEL", "STATUS"), [[model.id, model.status] for model in models])


def _pair(option: str, text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not (name and separator and value):
        raise InvalidRequest(f"{option} {text!r} is not NAME=VALUE")
    return name, value


@app.command()
def structure(
    ctx: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(help="Served model. Default: the one loaded last."),
    ] = None,
    names: Annotated[bool, typer.Option("--names", help="Include the aliases of each hook.")] = False,
    modules: Annotated[bool, typer.Option("--modules", help="Include module locations.")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show a model's layers, widths, experts and verified hook points."""
    with closing(client_of(ctx)) as client:
        found = client.models.structure(model)
    if output is Format.JSON:
        emit(found.model_dump_json())
        return
    fields = {
        "model": found.model,
        "revision": found.revision or "",
        "architecture": found.architecture,
        "layers": str(found.num_layers),
        "hidden size": str(found.hidden_size),
        "vocabulary": str(found.vocab_size),
        "experts": f"{found.num_experts}, {found.experts_per_token} per token" if found.num_experts else "",
        "context": str(found.context_length),
        "parameters": str(found.num_parameters),
        "dtype": found.dtype,
        "device": found.device,
        "chat template": "yes" if found.chat_template else "no",
        "batches": "" if found.ragged_batches else "of equal lengths only: padding changes the numbers",
    }
    emit(tables.fields(fields, 14))
    rows = [[name, info.location, str(info.width), info.dtype] for name, info in found.hooks.items()]
    emit("")
    emit(tables.render(("HOOK", "LOCATION", "WIDTH", "DTYPE"), rows, right=("WIDTH",)))
    if found.savepoints:
        emit("")
        emit(tables.render(("SAVEPOINT", "HOOK"), [list(item) for item in found.savepoints.items()]))
    if names:
        emit("")
        rows = [[name, "  ".join(info.aliases)] for name, info in found.hooks.items()]
        emit(tables.render(("HOOK", "OTHER NAMES"), rows))
    if found.unavailable:
        emit("")
        emit(tables.render(("UNAVAILABLE", "REASON"), [list(item) for item in found.unavailable.items()]))
    if modules:
        emit("")
        rows = [_module(found, location) for location in found.module_locations]
        emit(tables.render(("MODULE LOCATION", "WIDTH", "DTYPE"), rows, right=("WIDTH",)))


def _module(structure: "ModelStructure", location: str) -> list[str]:
    tensor = structure.tensor_of(location)
    return [location, str(tensor.width), tensor.dtype] if tensor else [location, "", ""]
