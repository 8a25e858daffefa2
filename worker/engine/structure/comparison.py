"""Comparison of tensors of a dry forward: equal, close, or a sum of others.

The residual stream of a real model holds single values thousands of times larger than the rest,
so a tolerance at the scale of a tensor would accept anything. Sums are checked element by element.
"""

import torch

_ROUNDINGS = 8
# Largest difference of rows that are computed in two ways, as the median over a row's channels, relative to
# each channel's usual size. Rounding makes 1e-6 of it in float32 and up to a few hundredths in half
# precision; another position or a state that took up other tokens makes a half and more.
_APART, _APART_HALF = 1e-2, 0.2
_HALF = (torch.bfloat16, torch.float16)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """The same numbers: one is the other, perhaps in a wider dtype or on another device."""
    return a.shape == b.shape and torch.equal(a.float(), b.to(a.device).float())


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal within a few roundings of the coarser dtype, measured at the scale of `b`.

    For two ways to compute the same thing.
    """
    if a.shape != b.shape:
        return False
    eps = max(torch.finfo(a.dtype).eps, torch.finfo(b.dtype).eps)
    a, b = a.float(), b.to(a.device).float()
    return bool((a - b).abs().max() <= _ROUNDINGS * eps * b.abs().max().clamp_min(1e-30))


def adds_up(total: torch.Tensor, first: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether `total` is the sum of the terms, element by element, within the rounding of a sum.

    False also if `first` alone would pass, since the check then verifies nothing.
    """
    terms = [first, *others]
    if any(t.shape != total.shape for t in terms):
        return False
    eps = max(torch.finfo(t.dtype).eps for t in (total, *terms))
    wide = [t.to(total.device).double() for t in terms]
    exact = total.double()
    allowed = 2 * eps * torch.stack([t.abs() for t in wide]).sum(0)
    if bool(((wide[0] - exact).abs() <= allowed).all()):
        return False
    return bool(((torch.stack(wide).sum(0) - exact).abs() <= allowed).all())


def adds_up_scaled(total: torch.Tensor, first: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether `total` is `first` and a constant times `other`, by `adds_up`; the constant is fitted."""
    if first.shape != total.shape or other.shape != total.shape:
        return False
    term = other.to(total.device).double()
    square = float((term * term).sum())
    if not square:
        return False
    rest = total.double() - first.to(total.device).double()
    scaled = term * (float((rest * term).sum()) / square)
    return adds_up(total, first, scaled.to(total.dtype))


def alike(rows: torch.Tensor, expected: torch.Tensor, all_rows: torch.Tensor) -> bool:
    """Whether rows [n, width] equal the expected ones except for rounding.

    All of them in float32. In half precision most of them: a router may send single tokens to another expert.

    Args:
        all_rows: [more, width], which show each channel's usual size.
    """
    common = all_rows.double().square().mean(dim=0).sqrt()
    apart = (rows.double() - expected.double()).abs() / common.clamp_min(1e-30)
    apart = apart.masked_fill(~expected.isfinite(), 0).nan_to_num(nan=torch.inf)
    by_row = apart.median(dim=-1).values
    if rows.dtype in _HALF:
        return bool(by_row.median() <= _APART_HALF)
    return bool(by_row.max() <= _APART)
