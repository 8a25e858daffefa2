"""Rows of a stored SAE's decoder: what one unit of a latent's activation adds to the rows of its hook."""

import numpy as np
from numpy.typing import NDArray

from actograph import tensor_files
from actograph.contract.saes import SaeConfig
from storage.artifacts.checked_files import CheckedFile


def decoder_row(file: CheckedFile, config: SaeConfig, latent: int) -> NDArray[np.float32]:
    """The row [d_in] of one latent, of which alone the bytes are read.

    With `rescale_acts_by_decoder_norm` an activation counts along the row's direction: its length is then 1.

    Raises:
        StoreDamaged: the file is missing or damaged.
    """
    entry = tensor_files.read_header(file.read, file.size).entry("W_dec")
    offset, length = entry.byte_range(latent, latent + 1)
    row = tensor_files.value_array(entry.dtype, (config.d_in,), file.read(offset, length)).astype(np.float32)
    if config.rescale_acts_by_decoder_norm and (norm := float(np.linalg.norm(row.astype(np.float64)))):
        row = (row / norm).astype(np.float32)
    return row
