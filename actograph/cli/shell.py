"""Commands: how they are registered, their client, their output and exit statuses."""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from actograph.cli.flags import names
from actograph.contract.errors import ActographError, InvalidRequest, NotFound
from actograph.tables import Columns, cut, field_of, ordered, table

if TYPE_CHECKING:
    from actograph.client import Client
    from actograph.settings import Settings

C = TypeVar("C", bound=Callable[..., object])

#: exit statuses; they mean the same as in GitHub's `gh`
OK, ERROR, CANCELLED, AUTH, INTERRUPTED = 0, 1, 2, 4, 130
#: entries of a list without --limit and --all
DEFAULT_LIMIT = 20


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


FormatOption = Annotated[Format, typer.Option("--format", help="table, or json: one object per line.")]


@dataclass
class GlobalOptions:
    """Options before the command."""

    url: str | None = None
    #: by the flag, not by ACTOGRAPH_URL
    has_url_flag: bool = False
    api_key: str | None = None
    debug: bool = False


class Shell:
    """The service and the output of a running command."""

    def __init__(self, options: GlobalOptions, *, json: bool) -> None:
        self.options, self.json = options, json

    @cached_property
    def client(self) -> "Client":
        """A client for the service of the options or the environment."""
        from actograph.client import Client

        settings = load_settings()
        key = self.options.api_key or settings.api_key
        return Client(self.options.url or settings.effective_url, key)

    def id(self, prefix: str, typed: str) -> str:
        """Return the full id of a `job`, `ses`, `batch` or `key`. Raises the errors of `full_id`.

        Of a `vec` or `sae` the text itself: the service finds these by id, prefix and name.
        """
        if prefix in ("vec", "sae"):
            return typed
        client = self.client
        listed: dict[str, Callable[[str], Iterable[Any]]] = {
            "job": lambda start: client.jobs.list(id_prefix=start),
            "ses": lambda start: client.sessions.list(id_prefix=start),
            "batch": lambda _: client.batches.list(),
            "key": lambda _: client.keys.list(),
        }
        return full_id(typed, prefix, listed[prefix])

    def show(self, item: Any, text: Callable[[Any], str] = str) -> None:
        """Print one item as JSON or as the text that `text` makes of it."""
        emit(item.model_dump_json() if self.json else text(item))

    def rows(
        self,
        items: Iterable[Any],
        columns: Columns,
        *,
        quiet: bool | None = None,
        limit: int | None = None,
        everything: bool | None = None,
        fields: Sequence[str] | None = None,
        sort: str | None = None,
        width: int | None = None,
    ) -> None:
        """Print the first `limit` items as a table, as JSON lines, or as full ids.

        Lines of the table are cut at `width`.

        Raises:
            InvalidRequest: an item lacks a field of `fields` or `sort`.
        """
        limit = None if everything else limit or DEFAULT_LIMIT
        if fields:
            columns = [(path, partial(field_of, path=path)) for path in names(fields)]
        rest = iter(items if sort is None else ordered(items, sort))
        shown = list(islice(rest, limit))
        if quiet or self.json:
            for item in shown:
                emit(item.id if quiet else item.model_dump_json())
            return
        lines = table(columns, shown).splitlines()
        emit("\n".join(lines if width is None else (cut(line, width) for line in lines)))
        if limit is not None and next(rest, None) is not None:
            note(f"only the first {limit}; show more with --limit")

    def each(self, prefix: str, typed: Iterable[str], act: Callable[[str], Any]) -> None:
        """Act on each full id and print it, or the answer as JSON. Failures do not stop the others."""
        code = OK
        for name in typed:
            try:
                self.show(act(self.id(prefix, name)), lambda done: str(done.id))
            except ActographError as error:
                note(f"{name}: {error}")
                code = max(code, error_code(error))
        end(code)


def command(
    app: typer.Typer,
    name: str | None = None,
    flags: Mapping[str, Any] | None = None,
    examples: Iterable[str] = (),
    *,
    panel: str | None = None,
    formats: bool = True,
) -> Callable[[C], C]:
    """Register a command, a function with a `Shell` as its first parameter.

    Args:
        flags: options in place of `**given`: parameter -> `Annotated` type. They are None by default.
        examples: command lines under the help.
        panel: heading under which `actograph --help` lists it.
        formats: whether it has the option `--format`.
    """
    # rich joins lines unless an empty line separates them
    epilog = "\n\n".join(["Examples:", *(f"$ {line}" for line in examples)])

    def register(function: C) -> C:
        def run(ctx: typer.Context, output: Format = Format.TABLE, **given: Any) -> None:
            shell = Shell(ctx.find_object(GlobalOptions) or GlobalOptions(), json=output is Format.JSON)
            try:
                function(shell, **given)
            finally:
                if "client" in vars(shell):
                    shell.client.close()

        ours = inspect.signature(run).parameters
        _, *own = inspect.signature(function).parameters.values()
        option = inspect.Parameter.KEYWORD_ONLY
        parameters = [ours["ctx"], *(one for one in own if one.kind is one.POSITIONAL_OR_KEYWORD)]
        for flag, annotation in (flags or {}).items():
            parameters.append(inspect.Parameter(flag, option, default=None, annotation=annotation))
        parameters += [one for one in own if one.kind is option]
        if formats:
            parameters.append(ours["output"].replace(kind=option, annotation=FormatOption))
        run.__doc__ = function.__doc__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        named = name or function.__name__
        app.command(named, epilog=epilog if examples else None, rich_help_panel=panel)(run)
        return function

    return register


def load_settings(**overrides: Any) -> "Settings":
    """Return the settings of the environment, overridden by the command line.

    Raises:
        InvalidRequest: a value is invalid.
    """
    from pydantic import ValidationError

    from actograph.contract.field_wording import in_words
    from actograph.settings import Settings

    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = "_".join(str(part) for part in first["loc"])
        source = f"--{name.replace('_', '-')}" if name in given else f"ACTOGRAPH_{name.upper()}"
        raise InvalidRequest(f"{source}: {in_words([first])}") from error


def full_id(typed: str, prefix: str, listed: Callable[[str], Iterable[Any]]) -> str:
    """Return the id that begins with `typed`; `3fa2` stands for `job_3fa2` if the prefix is `job`.

    Args:
        listed: items, at least those whose id starts with its argument. It is not called for a full id.

    Raises:
        NotFound: no id matches.
        InvalidRequest: several ids match, or `typed` is empty.
    """
    digits = typed.removeprefix(f"{prefix}_")
    start = f"{prefix}_{digits}"
    if not digits:
        raise InvalidRequest(f"the id is empty; use one such as {prefix}_3fa2")
    if len(digits) == 32 and re.fullmatch("[0-9a-f]+", digits):
        return start
    valid = re.fullmatch("[0-9a-f]{1,31}", digits)
    found = list(islice((item.id for item in listed(start) if item.id.startswith(start)), 2)) if valid else []
    if len(found) > 1:
        raise InvalidRequest(f"{typed} is not unique: {found[0]} and {found[1]} start with it")
    if not found:
        raise NotFound(f"no {prefix} has the id {typed}")
    return str(found[0])


def end(code: int) -> None:
    """End the command, unless the status is 0."""
    if code:
        raise typer.Exit(code)


@contextmanager
def on_interrupt(text: str) -> Iterator[None]:
    """After a Ctrl-C, write a note and end the command."""
    try:
        yield
    except KeyboardInterrupt:
        note(text)
        raise typer.Exit(INTERRUPTED) from None


def job_status_code(status: str) -> int:
    return {"completed": OK, "cancelled": CANCELLED}.get(status, ERROR)


def error_code(error: Exception) -> int:
    return AUTH if isinstance(error, ActographError) and error.status in (401, 403) else ERROR


def emit(text: str) -> None:
    """Write results to stdout and flush, so that a pipe gets each line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a note to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def ask(question: str) -> None:
    """Ask for a yes at the terminal. Raises InvalidRequest without a terminal, and if the answer is no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidRequest(f"{question} Without a terminal, use --yes")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InvalidRequest("nothing was done")
