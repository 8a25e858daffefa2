"""The option `--scorer`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.contract.scorers import AnyScorer

ScorerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scorer",
        help='Name, or JSON such as {"name": "numeric", "tolerance": 0.01}. Repeat for more.',
    ),
]


def parse_scorers(texts: Sequence[str]) -> "list[AnyScorer]":
    """Parse the values of `--scorer`.

    Raises:
        InvalidRequest: a scorer is unknown, or its parameters are invalid.
    """
    from pydantic import TypeAdapter, ValidationError

    from actograph.contract.scorers import SCORER_NAMES, ScorerList, read_scorer_argument

    try:
        given = [read_scorer_argument(text) for text in texts]
    except ValueError as error:
        raise InvalidRequest(f"--scorer is not valid JSON: {error}") from error
    unknown = [text for text in given if isinstance(text, str) and text not in SCORER_NAMES]
    if unknown:
        raise InvalidRequest(f"--scorer: unknown scorer {unknown[0]!r}; use one of {', '.join(SCORER_NAMES)}")
    adapter: TypeAdapter[list[AnyScorer]] = TypeAdapter(ScorerList)
    try:
        return adapter.validate_python(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"][2:])
        raise InvalidRequest(f"--scorer: {place + ': ' if place else ''}{first['msg']}") from error


def as_sent(texts: Sequence[str]) -> list[Any]:
    """Return the scorers as a job spec, without defaults. Raises the errors of `parse_scorers`."""
    from actograph.contract.scorers import read_scorer_argument

    parse_scorers(texts)
    return [read_scorer_argument(text) for text in texts]
