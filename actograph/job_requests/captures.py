"""Captures as texts: `POINTS@LAYERS`, and their parts."""

from collections.abc import Sequence
from typing import Any

from actograph.contract.errors import InvalidRequest
from actograph.job_requests.parts import Part, plain


def parse_layers(text: str, shown: str = "layers") -> list[int] | str:
    """Parse `all`, a slice such as `8:20:4`, or a list such as `8,12,16`.

    Raises:
        InvalidRequest: `text` is none of these.
    """
    if text == "all" or ":" in text:
        return text
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidRequest(
            f"{shown} {text!r} is not valid; use all, a slice such as 8:20:4, or numbers such as 8,12,16"
        ) from None


def names(values: Sequence[str]) -> list[str] | None:
    """Split values at commas; None if there are none."""
    found = [part.strip() for value in values for part in value.split(",") if part.strip()]
    return found or None


def split_capture(text: str) -> tuple[list[str], str | None, list[str]]:
    """Split `points@layers`, such as `attn_in,mlp_in@8,12,16`, into points, layers and hooks.

    Names that are no points are hooks: `mlp_in.3`, a module path, or a savepoint.

    Raises:
        InvalidRequest: there are no points before the @.
    """
    from actograph.contract.hooks import POINTS  # imports pydantic, which --help does without

    before, _, layers = text.partition("@")
    found = names([before]) or []
    points = [name for name in found if name in POINTS]
    if layers and not points:  # an unknown point; the spec lists the known ones
        points = [name for name in found if "." not in name and "[" not in name]
    hooks = [name for name in found if name not in points]
    if not found or (layers and not points):
        raise InvalidRequest(
            f"capture {text!r} is not valid; use points@layers, such as attn_in,mlp_in@8,12,16"
        )
    return points, layers.strip() or None, hooks


def capture_of(value: str | Part) -> dict[str, Any]:
    """Return the capture of a job: a spec as it is, or that of a text such as `attn_in,mlp_in@8,12`.

    Raises:
        InvalidRequest: the text is not valid.
    """
    if not isinstance(value, str):
        return dict(plain(value))
    points, layers, hooks = split_capture(value)
    parts: dict[str, Any] = {"points": points, "layers": layers and parse_layers(layers), "hooks": hooks}
    return {name: part for name, part in parts.items() if part}
