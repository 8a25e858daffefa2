from collections.abc import Iterator
from functools import cache

import pytest
import typer


@pytest.fixture(scope="session", autouse=True)
def one_parser() -> Iterator[None]:
    """Build the parser of all commands once, not in every call of `main`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield
