"""Results of a patch job in Python: effects of cells, and arrays by name."""

from collections.abc import Callable
from functools import cached_property
from io import BytesIO
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from actograph.contract.errors import package
from actograph.contract.patching import ARRAYS_FILE, PatchingResult


class Patching:
    """Effects of a patch job, as of its ended pairs.

    Arrays by name, as in `patching["effect"]`:

    * `metric`, `effect`: of each pair, [pairs, points, layers, positions], or [..., positions, heads]. NaN
      where a pair has no such cell, or its effects are undefined.
    * `clean`, `corrupted`: the metric of both prompts as they are, [pairs].
    * `mean`, `low`, `high`: of the effect over pairs, with its 95 % interval; `pairs`: how many have one.

    Attributes:
        result: pairs, cells, and the labels of the axes (`points`, `layers`, `positions`, `heads`).
    """

    def __init__(self, result: PatchingResult, read: Callable[[str], bytes]) -> None:
        """`read` fetches a file by its name."""
        self.result = result
        self._read = read

    @cached_property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """All arrays by name."""
        with np.load(BytesIO(self.file(ARRAYS_FILE)), allow_pickle=False) as arrays:
            return dict(arrays)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """An array by name. Raises KeyError for an unknown name."""
        if name not in self.arrays:
            raise KeyError(f"{name!r} is no array of a patch job; there are {', '.join(self.arrays)}")
        return self.arrays[name]

    def file(self, name: str) -> bytes:
        """A file: `patch.npz`, `patch_resid_pre.png` or `.svg`. Raises ApiError with 404 if there is none."""
        return self._read(name)

    def frame(self) -> Any:
        """The cells as a `pandas.DataFrame`. Raises PackageMissing."""
        pandas = package("pandas", "a data frame")
        return pandas.DataFrame([one.model_dump() for one in self.result.cells])

    @override
    def __str__(self) -> str:
        return str(self.result)
