"""Latents of stored sessions: the two tensors [rows, top] of an SAE, and all latents of a row.

`sae:NAME.indices` and `sae:NAME.values` are stored. `sae:NAME` is made of them: float32 [rows, latents], 0
where a latent is not among those that were kept.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from actograph.contract.resources import TensorInfo
from actograph.contract.saes import is_latents, part_names
from actograph.tensor_files import Array, itemsize


@dataclass(frozen=True)
class Latents:
    """The largest latents of some rows.

    Attributes:
        indices: int32 `[rows, top]`: numbers of latents, the one with the largest activation first; -1 behind
            the last active one.
        values: float32 `[rows, top]`: their activations; 0 where the index is -1.
        size: latents of the SAE.
    """

    indices: NDArray[np.int32]
    values: NDArray[np.float32]
    size: int

    def __len__(self) -> int:
        return len(self.indices)

    def dense(self) -> NDArray[np.float32]:
        """All latents of the rows, `[rows, size]`; those that were not kept are 0."""
        return dense(self.indices, self.values, self.size)

    def of(self, latent: int) -> NDArray[np.float32]:
        """The activations `[rows]` of one latent; 0 where it was not kept.

        Raises:
            IndexError: the SAE has no such latent.
        """
        if not 0 <= latent < self.size:
            raise IndexError(f"latent {latent}: the SAE has latents 0 to {self.size - 1}")
        found: NDArray[np.float32] = np.where(self.indices == latent, self.values, 0).sum(axis=1)
        return found


def dense(indices: Array, values: Array, size: int) -> NDArray[np.float32]:
    """All latents `[rows, size]` of rows of which some are stored."""
    found = np.zeros((len(indices), size), np.float32)
    rows, places = np.nonzero(indices >= 0)
    found[rows, indices[rows, places]] = values[rows, places]
    return found


def latents_info(name: str, tensors: Mapping[str, TensorInfo]) -> TensorInfo | None:
    """The form of latents by their name, such as `sae:res-8`; None if they are not stored."""
    info = tensors.get(part_names(name)[1]) if is_latents(name) else None
    if info is None or info.latents is None:
        return None
    rows, nbytes = info.shape[0], info.shape[0] * info.latents * itemsize("F32")
    return info.model_copy(update={"shape": (rows, info.latents), "dtype": "F32", "nbytes": nbytes})


def is_part(name: str) -> bool:
    """Whether a stored tensor has numbers or activations of latents, so that its columns are no features."""
    return is_latents(name) and name in part_names(name.rpartition(".")[0])


def with_latents(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Tensors as their readers name them: both parts of latents are one."""
    found: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        if info.latents is None:
            found[name] = info
            continue
        whole = name.rpartition(".")[0]
        made = latents_info(whole, tensors)
        if made is not None:
            found[whole] = made
    return found
