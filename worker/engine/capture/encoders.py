"""SAEs on the device: each is loaded when the first request with it begins, and leaves with the last one.

The arithmetic is SAELens', in float32 whatever the model's dtype (sae_lens/saes; Bricken et al. 2023, Gao et
al. 2024, Rajamanoharan et al. 2024). Rows are encoded 64 at a time, so the memory for activations is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from actograph.contract.errors import CaptureFailed
from actograph.contract.saes import SaeConfig
from evals.plans import sae_bytes
from worker.engine.capture.budget import Piece
from worker.engine.capture.layouts import BLOCK
from worker.engine.capture.on_device import OnDevice
from worker.engine.messages import Encoding

#: rows of the decoder whose norms are computed at once
_NORMS_AT_ONCE = 4096
#: SAELens' own
_LAYER_NORM_EPSILON = 1e-5


class Encoder:
    """One SAE on a device.

    Args:
        memory: `sae_bytes` of the device.

    Raises:
        CaptureFailed: the file is missing, or not what the config says.
    """

    def __init__(self, encoding: Encoding, memory: Piece) -> None:
        self.config = config = encoding.config
        self._memory, self._device = memory, memory.device
        try:
            with safe_open(encoding.path, framework="pt", device="cpu") as file:
                self._read(config, file)
        except (OSError, ValueError, RuntimeError) as error:
            raise CaptureFailed(f"{encoding.name}: its weights cannot be read: {error}") from error
        self._latents = memory.tensor((BLOCK, config.d_sae), torch.float32)
        self._gates = self._latents
        if config.architecture == "gated":
            self._gates = memory.tensor((BLOCK, config.d_sae), torch.float32)

    def _read(self, config: SaeConfig, file: Any) -> None:
        def read(name: str, change: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
            return self._kept(change(file.get_tensor(name).to(torch.float32)))

        self._weights, self._b_dec = read("W_enc"), read("b_dec")
        match config.architecture:
            case "gated":
                self._gate, self._bias = read("b_gate"), read("b_mag")
                self._scale = read("r_mag", torch.exp)
            case "topk":
                self._bias, decoder = read("b_enc"), file.get_slice("W_dec")
                norms = [
                    decoder[start : start + _NORMS_AT_ONCE].to(torch.float32).norm(dim=-1)
                    for start in range(
                        0, config.d_sae if config.rescale_acts_by_decoder_norm else 0, _NORMS_AT_ONCE
                    )
                ]
                self._scale = self._kept(torch.cat(norms) if norms else torch.ones(config.d_sae))
            case "jumprelu":
                self._bias, self._threshold = read("b_enc"), read("threshold")
            case "standard":
                self._bias = read("b_enc")

    def _kept(self, tensor: Tensor) -> Tensor:
        return self._memory.tensor(tensor.shape, torch.float32).copy_(tensor)

    @property
    def places(self) -> tuple[int, ...]:
        """Addresses of its weights and of the memory for activations."""
        return tuple(one.data_ptr() for one in vars(self).values() if isinstance(one, Tensor))

    def top(self, rows: Tensor, count: int, *, padded: bool = False) -> tuple[Tensor, Tensor]:
        """The largest activations of rows [rows, d_in], of up to 64 rows.

        Args:
            count: of each row.
            padded: compute 64 rows whatever their number is, so that the bits of a row do not depend on it.

        Returns: numbers of latents, int32 [rows, count], and activations, float32, the largest first. Where a
            row has no further active latent the number is -1 and the activation 0.
        """
        x = rows.to(self._device, torch.float32)
        if padded and len(x) < BLOCK:
            x = torch.cat([x, x.new_zeros(BLOCK - len(x), x.shape[1])])
        latents = self._activations(x)
        kept = count if self.config.k is None else min(count, self.config.k)
        values, indices = latents.topk(kept, dim=-1)
        if self.config.k is not None:  # the k largest are chosen before those below 0 are cut off
            values = values.relu_()
        numbers = torch.where(values > 0, indices, -1).to(torch.int32)
        if kept < count:
            values = torch.nn.functional.pad(values, (0, count - kept))
            numbers = torch.nn.functional.pad(numbers, (0, count - kept), value=-1)
        return numbers[: len(rows)], values[: len(rows)]

    def _activations(self, x: Tensor) -> Tensor:
        """All activations [rows, d_sae], of a top-k SAE before the choice; valid until the next call."""
        if self.config.center_rows:
            x = x - x.mean(dim=-1, keepdim=True)
        match self.config.normalize_activations:
            case "layer_norm":
                x = x - x.mean(dim=-1, keepdim=True)
                x = x / (x.std(dim=-1, keepdim=True) + _LAYER_NORM_EPSILON)
            case "constant_norm_rescale":
                x = x * (self.config.d_in**0.5 / x.norm(dim=-1, keepdim=True))
        if self.config.apply_b_dec_to_input:
            x = x - self._b_dec
        found = torch.mm(x, self._weights, out=self._latents[: len(x)])
        match self.config.architecture:
            case "gated":
                gates = torch.add(found, self._gate, out=self._gates[: len(x)])
                return found.mul_(self._scale).add_(self._bias).relu_().masked_fill_(gates <= 0, 0)
            case "topk":
                return found.add_(self._bias).mul_(self._scale)
            case "jumprelu":
                return found.add_(self._bias).relu_().masked_fill_(found <= self._threshold, 0)
        return found.add_(self._bias).relu_()


class Encoders(OnDevice[Encoder]):
    """The SAEs of live requests, each once."""

    def open(self, encoding: Encoding) -> Encoder | None:
        """The SAE for one more request; None if the device has no room for it. Raises CaptureFailed."""
        config = encoding.config
        return self.take((encoding.sha256, config), sae_bytes(config), partial(Encoder, encoding))

    def close(self, encoding: Encoding) -> None:
        """End the use of an SAE by a request."""
        self.give((encoding.sha256, encoding.config))
