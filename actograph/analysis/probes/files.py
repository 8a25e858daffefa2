"""Features and labels in .npz files."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from actograph.analysis.row_files import open_arrays, read_array

Array = NDArray[Any]
PREFIX = "features"
#: further arrays of a file, one entry per row
PER_ROW = ("groups", "lengths", "texts", "types")
BASELINES = ("layer_0", "embedding")


@dataclass
class ProbeFile:
    """An open file: `features` [n, width], or `features.HOOK` for several hooks, and `labels` [n].

    `groups`, `lengths`, `texts`, `types` [n], `layer_0` and `embedding` [n, width] are optional.
    Arrays are read when asked for, so that one hook's features are in memory at a time.
    """

    path: Path
    arrays: Any

    @property
    def hooks(self) -> list[str]:
        """Names of the features: `features`, or the hooks."""
        named = [name.removeprefix(f"{PREFIX}.") for name in self.arrays if name.startswith(f"{PREFIX}.")]
        return named or [PREFIX]

    def features(self, hook: str) -> Array:
        """Read one hook's features, [n, width]."""
        return self.read(hook if hook == PREFIX else f"{PREFIX}.{hook}")

    def read(self, name: str) -> Array:
        """Read an array.

        Raises:
            InvalidDataset: it is missing, or holds objects, which only pickle could read.
        """
        return read_array(self.path, self.arrays, name)

    def per_row(self) -> dict[str, Array]:
        """Optional arrays that the file has."""
        return {name: self.read(name) for name in PER_ROW if name in self.arrays}

    def baselines(self) -> dict[str, Array]:
        """Features of the baselines that the file has."""
        return {name: self.read(name) for name in BASELINES if name in self.arrays}


@contextmanager
def open_probe_file(path: Path) -> Iterator[ProbeFile]:
    """Open an .npz file for a probe.

    Raises:
        InvalidDataset: it is no .npz file.
    """
    with open_arrays(path) as arrays:
        yield ProbeFile(path, arrays)
