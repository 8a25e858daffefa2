"""Options shared by all commands, and the client for them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli.output.output import Format
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.client import Client
    from actograph.settings import Settings

FormatOption = Annotated[
    Format, typer.Option("--format", help="table, or json: one object per line.", show_default=True)
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print ids only.")]
NoTruncOption = Annotated[bool, typer.Option("--no-trunc", help="Print ids in full.")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of entries.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Report only, change nothing.")]
AllOption = Annotated[bool, typer.Option("--all", "-a", help="List all entries.")]


@dataclass
class GlobalOptions:
    """Options before the command."""

    url: str | None = None
    api_key: str | None = None
    debug: bool = False


def client_of(ctx: typer.Context) -> "Client":
    """Return a client for the service of the options or the environment; close it after use."""
    from actograph.client import Client

    options = ctx.find_object(GlobalOptions) or GlobalOptions()
    settings = load_settings()
    return Client(options.url or settings.effective_url, options.api_key or settings.api_key)


def load_settings(**overrides: Any) -> "Settings":
    """Return the settings of the environment, overridden by the command line.

    Raises:
        InvalidRequest: a value is invalid.
    """
    from pydantic import ValidationError

    from actograph.settings import Settings

    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = "_".join(str(part) for part in first["loc"])
        source = (
            f"--{name.replace('_', '-')}" if overrides.get(name) is not None else f"ACTOGRAPH_{name.upper()}"
        )
        raise InvalidRequest(f"{source}: {first['msg']}") from error
