"""`actograph models`: what is served, and what a model looks like inside."""

from contextlib import closing
from typing import Annotated

import typer

from actograph.cli import tables
from actograph.cli.options import FormatOption, QuietOption, client_of
from actograph.cli.output import Format, emit, emit_json_lines

app = typer.Typer(no_args_is_help=True, help="The models that are served.")


@app.command("ls")
def list_models(ctx: typer.Context, quiet: QuietOption = False, output: FormatOption = Format.TABLE) -> None:
    """List the models that jobs may name."""
    with closing(client_of(ctx)) as client:
        models = client.models()
    if quiet:
        for model in models:
            emit(model.id)
    elif output is Format.JSON:
        emit_json_lines(models)
    else:
        emit(tables.render(("MODEL", "STATUS"), [[model.id, model.status] for model in models]))


@app.command()
def structure(
    ctx: typer.Context,
    model: Annotated[str | None, typer.Argument(help="Default: the model that is served.")] = None,
    modules: Annotated[bool, typer.Option("--modules", help="List every module location, too.")] = False,
    output: FormatOption = Format.TABLE,
) -> None:
    """Show a model's layers, widths, experts and hook points, as its worker proved them."""
    with closing(client_of(ctx)) as client:
        found = client.structure(model)
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
    }
    for name, text in fields.items():
        if text:
            emit(f"{name + ':':<14} {tables.clean(text)}")
    rows = [[name, info.location, str(info.width), info.dtype] for name, info in found.hooks.items()]
    emit("")
    emit(tables.render(("HOOK", "LOCATION", "WIDTH", "DTYPE"), rows, right=("WIDTH",)))
    if found.unavailable:
        emit("")
        emit(tables.render(("NOT THERE", "REASON"), [list(item) for item in found.unavailable.items()]))
    if modules:
        emit("")
        emit("\n".join(["MODULE LOCATION", *map(tables.clean, found.module_locations)]))
