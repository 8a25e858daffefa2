"""Checks of a job against the model's structure, for the API at submission and the worker at start."""

from collections.abc import Sequence

from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import ModelStructure
from actograph.contract.row_selection import FirstFeatures
from actograph.contract.specs import CaptureSpec, SamplingSpec


def features_needed(capture: CaptureSpec) -> int:
    """The smallest width of a hook that has all selected features; 0 selects all features."""
    if capture.features is None:
        return 0
    if isinstance(capture.features, FirstFeatures):
        return capture.features.first
    return max(capture.features.indices) + 1


def check_capture(capture: CaptureSpec, hooks: Sequence[str], structure: ModelStructure) -> None:
    """Check the requested features, reductions and statistics against the captured hooks.

    Args:
        hooks: canonical names, see `hooks.expand`.

    Raises:
        InvalidRequest: `param` is the field of the spec, such as `capture.features`.
    """
    needed = features_needed(capture)
    sums_up = (
        "stats" if capture.stats is not None else "reduce" if capture.reduce in ("mean", "max") else None
    )
    for hook in hooks:
        info = structure.tensor_of(hook)
        if sums_up and info is not None and "int" in info.dtype:
            raise InvalidRequest(
                f"{hook} holds integers ({info.dtype}), which have no mean, maximum or statistics; capture "
                "it in a job without reduce and stats, or with reduce: last",
                param=f"capture.{sums_up}",
            )
        if info is not None and needed > info.width:
            raise InvalidRequest(
                f"{hook} has {info.width} features (0 to {info.width - 1}); the spec asks for feature "
                f"{needed - 1}. Lower features, or capture hooks that are wide enough",
                param="capture.features",
            )


def check_sampling(sampling: SamplingSpec, structure: ModelStructure) -> None:
    """Raises InvalidRequest if `logit_bias` names a token that the model does not have."""
    beyond = [token for token in sampling.logit_bias if token >= structure.vocab_size]
    if beyond:
        raise InvalidRequest(
            f"logit_bias names token {beyond[0]}; this model's ids are from 0 to {structure.vocab_size - 1}",
            param="sampling.logit_bias",
        )
