"""`actograph vectors`: list, store, show and delete vectors for interventions."""

from pathlib import Path
from typing import Annotated, Any

import typer

from actograph.cli.flags import LIST_FLAGS, YesOption
from actograph.cli.shell import Shell, ask, command, emit, note
from actograph.contract.errors import InvalidDataset
from actograph.short_texts import shorten
from actograph.tables import Columns, table

app = typer.Typer(no_args_is_help=True, help="List, store, show and delete vectors for interventions.")

COLUMNS: Columns = ("vector id=id", "name", "hook", "width", "model", "age=created_at")
_REFERENCE = "Id, or a unique prefix; a name, or NAME@HOOK."
Reference = Annotated[str, typer.Argument(metavar="VECTOR", help=_REFERENCE)]
References = Annotated[list[str], typer.Argument(metavar="VECTOR", help=_REFERENCE)]
_FILTERS: dict[str, Any] = {
    "name": Annotated[str | None, typer.Option(help="Vectors of this name.")],
    "hook": Annotated[str | None, typer.Option(help="Vectors of this hook.")],
    "model": Annotated[str | None, typer.Option(help="Vectors of this model.")],
}


@command(app, "ls", _FILTERS | LIST_FLAGS, ["actograph vectors ls --name truth"])
def list_vectors(shell: Shell, **given: Any) -> None:
    """List vectors, newest first."""
    shown = {name: given.pop(name) for name in LIST_FLAGS}
    shell.rows(shell.client.vectors.list(**given), COLUMNS, **shown)


@command(app)
def show(shell: Shell, vector: Reference) -> None:
    """Show a vector; --format json has its numbers."""
    shell.show(shell.client.vectors.get(vector), str)


@command(app, "create", examples=["actograph vectors create truth directions.npz --hook resid_post.12"])
def create(
    shell: Shell,
    name: str,
    file: Path = typer.Argument(..., metavar="FILE", exists=True, dir_okay=False),
    *,
    hook: str | None = typer.Option(
        None, help="Hook of the vector, and its array in the file. Default: all arrays, by their names."
    ),
    model: str | None = typer.Option(None, help="Only jobs of this model may use it."),
) -> None:
    """Store arrays [width] of an .npz or .safetensors file, such as an analysis's directions.npz."""
    from actograph.analysis.files import read_arrays

    arrays = read_arrays(file)
    if hook is not None:
        if hook not in arrays and len(arrays) > 1:
            raise InvalidDataset(f"{file} has no array {hook}; it has {', '.join(arrays)}")
        arrays = {hook: arrays[hook] if hook in arrays else next(iter(arrays.values()))}
    for one, numbers in arrays.items():
        if numbers.ndim != 1 or numbers.dtype.kind not in "fiu":
            shape = list(numbers.shape)
            raise InvalidDataset(f"{file}: {one} is {numbers.dtype} {shape}; a vector is numbers [width]")
    made = [
        shell.client.vectors.create(name, one, numbers.tolist(), model=model)
        for one, numbers in arrays.items()
    ]
    if shell.json:
        for vector in made:
            emit(vector.model_dump_json())
    else:
        emit(table(COLUMNS, made))


@command(app, "rm", examples=["actograph vectors rm truth@resid_post.12"])
def remove(
    shell: Shell,
    vectors: References,
    *,
    yes: YesOption = False,
) -> None:
    """Delete vectors that no active job uses."""
    if not yes:
        ask(f"Delete {'1 vector' if len(vectors) == 1 else f'{len(vectors)} vectors'}?")
    shell.each("vec", vectors, shell.client.vectors.delete)


def note_saved(shell: Shell, name: str, ids: dict[str, str]) -> None:
    """Report the vectors that were stored under a name: hook -> id."""
    for hook, vector_id in ids.items():
        note(f"saved {name}@{hook} as {shorten(vector_id)}")
