"""Threads of BLAS for fits of small matrices."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import numpy as np
from threadpoolctl import threadpool_limits

P = ParamSpec("P")
T = TypeVar("T")
#: numbers of a matrix from which several threads read it sooner than one
SHARED_NUMBERS = 1 << 22


def one_if_small(fit: Callable[P, T]) -> Callable[P, T]:
    """Let a function of `features` use one thread if they are few numbers.

    OpenBLAS's threads wait for each other in a loop. A probe makes thousands of short products, and beside a
    busy engine these loops took half of its CPU time.
    """

    @wraps(fit)
    def limited(*args: P.args, **kwargs: P.kwargs) -> T:
        if np.asarray(args[0] if args else kwargs["features"]).size >= SHARED_NUMBERS:
            return fit(*args, **kwargs)
        with threadpool_limits(limits=1, user_api="blas"):
            return fit(*args, **kwargs)

    return limited
