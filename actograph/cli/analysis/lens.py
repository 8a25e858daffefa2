"""`actograph lens`: next tokens that stored rows of the residual stream stand for."""

import json
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli.analysis.sources import jobs_of, one_file, refuse_files_only
from actograph.cli.flags.options import client_of
from actograph.cli.output.output import emit
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.analysis.lens.checkpoint import Checkpoint

#: rows of a hook in memory at a time
_BLOCK = 256


def lens(
    ctx: typer.Context,
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE...", help="Folder of a session, .npz file of arrays, or jobs."),
    ],
    *,
    model: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Checkpoint of a file: config and safetensors files.")
    ] = None,
    hook: Annotated[
        list[str] | None, typer.Option(help="Hooks to read (repeated). Default: all of resid_post.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Tokens per row.")] = 5,
    rows: Annotated[str | None, typer.Option(help="Jobs: tokens whose rows are read. Default: all.")] = None,
    token: Annotated[
        str | None,
        typer.Option(metavar="ID|next", help="Jobs: attribute this token's logit to the components."),
    ] = None,
    against: Annotated[
        int | None, typer.Option(min=0, metavar="ID", help="Jobs: subtract this token's logit.")
    ] = None,
) -> None:
    """Print the most probable next tokens of each layer and row (the logit lens), as JSON.

    Rows pass through the final norm and the unembedding, without a GPU. Files give a line per row. Jobs are
    read by an analysis worker of the service, with the weight files of their model; they give means by hook.
    """
    if jobs := jobs_of(ctx, sources):
        refuse_files_only(model=model)
        fields: dict[str, Any] = {"rows": rows, "against": against}
        fields["token"] = int(token) if token is not None and token.isdecimal() else token
        chosen = {name: value for name, value in fields.items() if value is not None}
        with closing(client_of(ctx)) as client:
            report = client.analysis.lens(*jobs, progress=True, top=top, hooks=hook or [], **chosen)
        emit(json.dumps(report.summary))
        return
    for name, value in {"rows": rows, "token": token, "against": against}.items():
        if value is not None:
            raise InvalidRequest(f"--{name} works on jobs, not on files", param=name)
    if model is None:
        raise InvalidRequest("name the checkpoint of the rows: --model DIR", param="model")
    _of_file(one_file(sources), model, hook, top)


def _of_file(source: Path, model: Path, hook: list[str] | None, top: int) -> None:
    from actograph.analysis.lens.checkpoint import Checkpoint
    from actograph.analysis.row_files import chosen_hooks, open_arrays

    checkpoint = Checkpoint(model)
    if source.is_dir():
        from actograph.client.tensors import open_folder

        session = open_folder(source)
        known = [name for name in session if name.startswith("resid_post")]
        for name in chosen_hooks(list(session) if hook else known, hook, source):
            tensor = session[name]
            for start in range(0, len(tensor), _BLOCK):
                _write(name, start, tensor[start : start + _BLOCK], checkpoint, top)
    elif source.suffix == ".npz":
        with open_arrays(source) as arrays:
            known = [name for name in arrays if name.startswith("resid_post")]
            for name in chosen_hooks(list(arrays) if hook else known, hook, source):
                rows = arrays[name]
                for start in range(0, len(rows), _BLOCK):
                    _write(name, start, rows[start : start + _BLOCK], checkpoint, top)
    else:
        raise InvalidRequest(f"{source} is neither a session's folder nor an .npz file")


def _write(hook: str, start: int, rows: Any, checkpoint: "Checkpoint", top: int) -> None:
    """Write one line per row."""
    from actograph.analysis.lens.logit_lens import logit_lens

    found = logit_lens(rows, checkpoint, top=top)
    pieces = checkpoint.pieces
    for row, (tokens, logs) in enumerate(
        zip(found.tokens.tolist(), found.log_probabilities.tolist(), strict=True)
    ):
        listed = [
            {"token": token, "piece": pieces.get(token), "log_probability": round(log, 6)}
            for token, log in zip(tokens, logs, strict=True)
        ]
        emit(json.dumps({"hook": hook, "row": start + row, "top": listed}))
