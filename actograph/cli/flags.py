"""Options that commands share, ids, and the client of a command."""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from actograph.cli.output import Format
from actograph.contract.errors import InvalidRequest, NotFound

if TYPE_CHECKING:
    from actograph.client import Client
    from actograph.client.sessions import SessionFilters
    from actograph.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])

FormatOption = Annotated[Format, typer.Option("--format", help="table, or json: one object per line.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print full ids only.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Report only, change nothing.")]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Follow the job to its end.")]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id, or a unique prefix.")]
IdArguments = Annotated[list[str], typer.Argument(metavar="ID", help="Ids, or unique prefixes.")]
ScorersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scorer", help='Name, or JSON such as {"name": "numeric", "tolerance": 0.01}. Repeat for more.'
    ),
]

#: options of lists, for `add_flags`; `emit_list` takes them
LIST_FLAGS: dict[str, Any] = {
    "limit": Annotated[
        int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of entries. (default: 20)")
    ],
    "everything": Annotated[bool | None, typer.Option("--all", "-a", help="List all entries.")],
    "quiet": QuietOption,
}
#: options that select sessions
SESSION_FILTERS: dict[str, Any] = {
    "job": Annotated[str | None, typer.Option(help="Sessions of this job.")],
    "model": Annotated[str | None, typer.Option(help="Sessions of this model.")],
    "condition": Annotated[str | None, typer.Option(help="Sessions of this condition.")],
    "sample_index": Annotated[int | None, typer.Option(help="Sessions of this dataset row.")],
    "correct": Annotated[
        bool | None, typer.Option("--correct/--incorrect", help="Verdict of the first scorer.")
    ],
    "tag": Annotated[str | None, typer.Option(help="Sessions with this tag.")],
    "owner": Annotated[str | None, typer.Option(help="Sessions of this owner.")],
    "pinned": Annotated[
        bool | None, typer.Option("--pinned/--not-pinned", help="Pinned sessions, or those without a pin.")
    ],
}

NEVER = "never"
_SPAN = re.compile(r"([1-9]\d{0,8})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass
class GlobalOptions:
    """Options before the command."""

    url: str | None = None
    api_key: str | None = None
    debug: bool = False


def connect(ctx: typer.Context) -> "Client":
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

    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = "_".join(str(part) for part in first["loc"])
        source = f"--{name.replace('_', '-')}" if name in given else f"ACTOGRAPH_{name.upper()}"
        raise InvalidRequest(f"{source}: {first['msg']}") from error


def examples(*lines: str) -> str:
    """Return the text under a command's help. Rich joins lines unless an empty line separates them."""
    return "\n\n".join(["Examples:", *(f"$ {line}" for line in lines)]).replace("[", r"\[")


def add_flags(flags: Mapping[str, Any]) -> Callable[[F], F]:
    """Replace `**flags` of a command by options, before its own. They are None by default.

    Args:
        flags: parameter -> `Annotated` type with the option.
    """

    def decorate(command: F) -> F:
        parameters = list(inspect.signature(command).parameters.values())
        positional = [one for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
        own = [one for one in parameters if one.kind is one.KEYWORD_ONLY]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            for name, annotation in flags.items()
        ]
        command.__signature__ = inspect.Signature([*positional, *added, *own])  # type: ignore[attr-defined]
        return command

    return decorate


def full_id(typed: str, prefix: str, listed: Callable[[str], Iterable[Any]]) -> str:
    """Return the id that begins with `typed`; `3fa2` stands for `job_3fa2` if the prefix is `job`.

    Args:
        listed: items, at least those whose id starts with its argument. It is not called for a full id.

    Raises:
        NotFound: no id matches.
        InvalidRequest: several ids match, or `typed` is empty.
    """
    start = typed if typed.startswith(f"{prefix}_") else f"{prefix}_{typed}"
    digits = start.removeprefix(f"{prefix}_")
    if not digits:
        raise InvalidRequest(f"the id is empty; use one such as {prefix}_3fa2")
    if not re.fullmatch(r"[0-9a-f]{1,32}", digits):
        raise NotFound(f"no {prefix} has the id {typed}")
    if len(digits) == 32:
        return start
    found = ""
    for item in listed(start):
        if item.id.startswith(start):
            if found:
                raise InvalidRequest(f"{typed} is not unique: {found} and {item.id} start with it")
            found = item.id
    if not found:
        raise NotFound(f"no {prefix} has the id {typed}")
    return found


def job_id(client: "Client", typed: str) -> str:
    """Return the full id of a job. Raises the errors of `full_id`."""
    return full_id(typed, "job", lambda start: client.jobs.list(id_prefix=start))


def session_id(client: "Client", typed: str) -> str:
    """Return the full id of a session. Raises the errors of `full_id`."""
    return full_id(typed, "ses", lambda start: client.sessions.list(id_prefix=start))


def session_query(
    client: "Client",
    filters: Mapping[str, Any],
    ids: list[str] | None = None,
    *,
    everything: bool | None = None,
) -> "SessionFilters":
    """Return the query of `SESSION_FILTERS`.

    Unless `everything` is None, exactly one of ids, filters and --all is needed.

    Raises:
        InvalidRequest: none or several of them were given.
    """
    query: Any = {name: value for name, value in filters.items() if value is not None}
    if everything is not None and bool(ids) + bool(query) + everything != 1:
        raise InvalidRequest("choose sessions by id, by filters such as --job and --tag, or with --all")
    if "job" in query:
        query["job_id"] = job_id(client, query.pop("job"))
    wanted: SessionFilters = query
    return wanted


def seconds_of(text: str, option: str) -> int:
    """Return the seconds of `90s`, `30m`, `12h` or `7d`.

    Raises:
        InvalidRequest: `text` is not a duration; the message names `option`.
    """
    match = _SPAN.fullmatch(text.strip().lower())
    if match is None:
        raise InvalidRequest(f"{option}: {text!r} is not a duration; use 90s, 30m, 12h or 7d")
    return int(match[1]) * _SECONDS[match[2]]


def names(values: Iterable[str]) -> list[str]:
    """Split values at commas."""
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


def name_and_value(text: str, option: str) -> tuple[str, str]:
    """Split `NAME=VALUE`. Raises InvalidRequest."""
    name, separator, value = text.partition("=")
    if not (name and separator and value):
        raise InvalidRequest(f"{option} {text!r} is not NAME=VALUE")
    return name, value


def scorers_of(texts: Iterable[str]) -> list[Any]:
    """Return the scorers of `--scorer`. Raises InvalidRequest for broken JSON."""
    try:
        return [json.loads(text) if text.lstrip().startswith("{") else text for text in texts]
    except ValueError as error:
        raise InvalidRequest(f"--scorer is not valid JSON: {error}") from error
