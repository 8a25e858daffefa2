"""How plain calls wait: the counterpart of `aio.runtime`, both written by hand."""

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def sleep(seconds: float) -> None:
    """Wait so long."""
    time.sleep(seconds)


def aside(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do it here: there is no event loop that it could hold up."""
    return work(*args, **kwargs)
