"""When two tensors of a dry forward count as equal."""

import torch

_ROUNDINGS = 8


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal within a few roundings of the coarser dtype, measured at the scale of `b`."""
    if a.shape != b.shape:
        return False
    eps = max(torch.finfo(a.dtype).eps, torch.finfo(b.dtype).eps)
    a, b = a.float(), b.float()
    return bool((a - b).abs().max() <= _ROUNDINGS * eps * b.abs().max().clamp_min(1e-30))
