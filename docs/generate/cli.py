"""The page of commands, from the command line's own parser."""

from collections.abc import Iterator
from typing import Any

import typer

from actograph.cli.main import app
from docs.generate.markdown import cell, code, escape, heading, table

INTRODUCTION = """\
Every command with its arguments and options. The guide is
[the command line](../guides/client.md#the-command-line)."""


def commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below a group, depth first."""
    for name, child in sorted(getattr(command, "commands", {}).items()):
        if not child.hidden:
            if not hasattr(child, "commands"):
                yield (*path, name), child
            yield from commands(child, (*path, name))


def parameters(command: Any) -> Iterator[tuple[str, str, str]]:
    """Rows of the table of arguments and options."""
    for parameter in command.params:
        if getattr(parameter, "hidden", False) or parameter.name == "help":
            continue
        if parameter.param_type_name == "argument":
            name = (parameter.metavar or parameter.name.upper()).strip("[]")
            yield code(name), "", cell(plain(parameter.help))
            continue
        names = [*parameter.opts, *parameter.secondary_opts]
        takes = "" if parameter.is_flag else parameter.metavar or parameter.name.upper()
        value = parameter.default
        shown = "" if callable(value) or value in (None, (), [], False) or "UNSET" in repr(value) else value
        yield (
            " ".join(code(name) for name in names) + (f" {code(takes)}" if takes else ""),
            code(getattr(shown, "value", shown)),
            cell(plain(parameter.help)),
        )


def plain(text: str | None) -> str:
    """A help text without the marks of a terminal's, which the command line adds when it runs."""
    return (text or "").replace("\\[", "[").strip()


def examples(command: Any) -> list[str]:
    """Examples under a command's help."""
    lines = plain(command.epilog).splitlines()
    return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def section(path: tuple[str, ...], command: Any) -> str:
    """One command: summary, parameters and examples."""
    name = " ".join(path)
    text = f"## actograph {name}\n\n" + escape(plain(command.help)) + "\n\n"
    text += table(("argument or option", "default", "meaning"), parameters(command))
    if lines := examples(command):
        text += "```sh\n" + "\n".join(lines) + "\n```\n\n"
    return text


def page() -> str:
    """Build the page."""
    root: Any = typer.main.get_command(app)
    text = heading("Commands", INTRODUCTION)
    text += "## Options of every command\n\nThese stand before the command.\n\n"
    common = [row for row in parameters(root) if "completion" not in row[0]]
    text += table(("option", "default", "meaning"), common)
    return text + "".join(section(path, command) for path, command in commands(root, ()))
