"""Options that commands share, and their values."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.settings import Settings

ADAPTER = "LoRA of --model to serve beside it: folder, Hub id or NAME=<one> (commas or repeated)."

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Report only, change nothing.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print full ids only.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id, or a unique prefix.")]
IdArguments = Annotated[list[str], typer.Argument(metavar="ID", help="Ids, or unique prefixes.")]
ScorersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scorer", help='Name, or JSON such as {"name": "numeric", "tolerance": 0.01}. Repeat for more.'
    ),
]

#: options of lists; `Shell.rows` takes them
LIST_FLAGS: dict[str, Any] = {
    "limit": Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of entries. (default: 20)")
    ],
    "everything": Annotated[bool | None, typer.Option("--all", "-a", help="List all entries.")],
    "fields": Annotated[
        list[str] | None,
        typer.Option("--columns", help="Fields to show, such as id,progress.completed (commas or repeated)."),
    ],
    "sort": Annotated[
        str | None, typer.Option(help="Read all entries and sort by this field; -FIELD is descending.")
    ],
    "quiet": QuietOption,
}


def names(values: Iterable[str]) -> list[str]:
    """Split values at commas."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def name_and_value(text: str, option: str) -> tuple[str, str]:
    """Split `NAME=VALUE`. Raises InvalidRequest."""
    name, _, value = text.partition("=")
    if not (name and value):
        raise InvalidRequest(f"{option} {text!r} is not NAME=VALUE")
    return name, value


def scorers_of(texts: Iterable[str]) -> list[Any]:
    """Return the scorers of `--scorer`. Raises InvalidRequest for broken JSON."""
    try:
        return [json.loads(text) if text.lstrip().startswith("{") else text for text in texts]
    except ValueError as error:
        raise InvalidRequest(f"--scorer is not valid JSON: {error}") from error


def with_adapters(settings: "Settings", adapters: Iterable[str]) -> "Settings":
    """The settings of a service that serves the model with each of these adapters too.

    Raises:
        InvalidRequest: there is no model to which they belong, or one of them cannot be read.
    """
    from actograph.contract.models import adapter_of_base

    given = names(adapters)
    if not given:
        return settings
    if not settings.model:
        raise InvalidRequest(f"--adapter {given[0]}: no model; set --model to its base")
    added = tuple(adapter_of_base(settings.model, one) for one in given)
    return settings.model_copy(update={"allowed_models": (*settings.allowed_models, *added)})


def model_with(model: str | None, adapter: str) -> str:
    """The model of a request with an adapter. Raises InvalidRequest without a model."""
    from actograph.contract.models import with_adapter

    if model is None:
        raise InvalidRequest(f"--adapter {adapter}: name its base with --model, or give its name to --model")
    return with_adapter(model, adapter)
