"""Options that several commands share, added to a command's signature."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])


def add_flags(flags: Mapping[str, Any]) -> Callable[[F], F]:
    """Replace `**flags` of a command by options, before its own options. They are None by default.

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
