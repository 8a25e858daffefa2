"""Keyword arguments of calls that take many: unknown names are a TypeError, as of any Python call."""

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import BaseModel

from actograph.contract.suggestions import did_you_mean


def require_known(
    call: Callable[..., Any], given: Iterable[str], *forms: Any, fixed: Iterable[str] = ()
) -> None:
    """Refuse keyword arguments of a call that none of the forms has.

    Args:
        call: its named parameters are suggested too.
        given: names of the other keyword arguments.
        forms: TypedDicts, or models of the contract.
        fixed: fields of a form that the call sets itself.

    Raises:
        TypeError: with the nearest known name.
    """
    known = {name for form in forms for name in _names(form)} - set(fixed)
    for name in given:
        if name not in known:
            named = {
                one.name
                for one in inspect.signature(call).parameters.values()
                if one.kind is not one.VAR_KEYWORD
            }
            hint = did_you_mean(name, known | named)
            raise TypeError(f"{call.__name__}() got an unexpected keyword argument {name!r}{hint}")


def listed(names: str | Iterable[str]) -> list[str]:
    """A name, or several, as a list."""
    return [names] if isinstance(names, str) else list(names)


def _names(form: Any) -> Iterable[str]:
    if issubclass(form, BaseModel):
        return list(form.model_fields)
    return list[str](form.__annotations__)
