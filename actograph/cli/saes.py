"""`actograph saes`: list, store, show and delete SAEs."""

from typing import Annotated, Any

import typer

from actograph.cli.flags import LIST_FLAGS, YesOption
from actograph.cli.shell import Shell, ask, command
from actograph.tables import Columns

app = typer.Typer(no_args_is_help=True, help="List, store, show and delete SAEs.")

COLUMNS: Columns = (
    "sae id=id", "name", "hook", ("architecture", lambda one: one.config.architecture),
    ("latents", lambda one: one.config.d_sae), "model", "age=created_at",
)  # fmt: skip
_REFERENCE = "Id, a unique prefix, or a name."
Reference = Annotated[str, typer.Argument(metavar="SAE", help=_REFERENCE)]
References = Annotated[list[str], typer.Argument(metavar="SAE", help=_REFERENCE)]
_FILTERS: dict[str, Any] = {
    "name": Annotated[str | None, typer.Option(help="The SAE of this name.")],
    "hook": Annotated[str | None, typer.Option(help="SAEs of this hook.")],
    "model": Annotated[str | None, typer.Option(help="SAEs of this model.")],
}


@command(app, "ls", _FILTERS | LIST_FLAGS, ["actograph saes ls --hook resid_post.8"])
def list_saes(shell: Shell, **given: Any) -> None:
    """List SAEs, newest first."""
    shown = {name: given.pop(name) for name in LIST_FLAGS}
    shell.rows(shell.client.saes.list(**given), COLUMNS, **shown)


@command(app)
def show(shell: Shell, sae: Reference) -> None:
    """Show an SAE: its architecture, sizes, hook and source."""
    shell.show(shell.client.saes.get(sae), str)


_EXAMPLES = [
    "actograph saes create res-8 --path saes/blocks.8.hook_resid_post",
    "actograph saes create res-8 --hub owner/saes --folder blocks.8.hook_resid_post --model demo",
]


@command(app, "create", examples=_EXAMPLES)
def create(
    shell: Shell,
    name: str,
    *,
    path: str | None = typer.Option(None, help="Folder of the server, below a data root."),
    hub: str | None = typer.Option(None, help="Repository of the Hugging Face Hub: OWNER/NAME."),
    folder: str | None = typer.Option(None, help="Folder of the repository."),
    revision: str | None = typer.Option(None, help="Branch, tag or commit of the repository."),
    hook: str | None = typer.Option(None, help="Hook of its rows. Default: the hook in its files."),
    model: str | None = typer.Option(None, help="Only jobs of this model may use it."),
    center_rows: bool | None = typer.Option(
        None,
        "--center-rows/--no-center-rows",
        help="Subtract each row's mean first, for SAEs trained with center_writing_weights. "
        "Default: the entry of SAELens' registry.",
    ),
) -> None:
    """Store an SAE in SAELens' format: cfg.json and sae_weights.safetensors of one folder."""
    made = shell.client.saes.create(
        name,
        path=path,
        hub=hub,
        folder=folder,
        revision=revision,
        hook=hook,
        model=model,
        center_rows=center_rows,
    )
    shell.show(made, str)


@command(app, "rm", examples=["actograph saes rm res-8"])
def remove(shell: Shell, saes: References, *, yes: YesOption = False) -> None:
    """Delete SAEs that no active job uses. Stored latents stay."""
    if not yes:
        ask(f"Delete {'1 SAE' if len(saes) == 1 else f'{len(saes)} SAEs'}?")
    shell.each("sae", saes, shell.client.saes.delete)
