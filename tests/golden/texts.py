"""The service as its users see it, as texts that a review can compare."""

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from pydantic import BaseModel

from actograph.cli.main import app
from actograph.contract import resources, specs
from api.app import create_app

FOLDER = Path(__file__).parent


def texts() -> dict[str, str]:
    """File name -> content."""
    return {
        "openapi.json": _json(_without_examples(create_app().openapi())),
        "help.txt": "\n".join(_help(typer.main.get_command(app), "actograph")),
        "models.json": _json({model.__name__: model.model_json_schema() for model in _models()}),
    }


def _without_examples(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _without_examples(v) for name, v in value.items() if name not in ("example", "examples")
        }
    return [_without_examples(v) for v in value] if isinstance(value, list) else value


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _help(command: Any, path: str) -> Iterator[str]:
    """Arguments and options of a command and of its subcommands."""
    yield f"{path}: {command.help or ''}".rstrip()
    for parameter in command.params:
        names = ", ".join([*parameter.opts, *parameter.secondary_opts])
        yield f"    {names}: {getattr(parameter, 'help', None) or ''}".rstrip()
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from _help(child, f"{path} {name}")


def _models() -> list[type[BaseModel]]:
    """Resources and specs of the contract."""
    found = {
        member
        for module in (resources, specs)
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, BaseModel)
    }
    return sorted(found, key=lambda model: model.__name__)
