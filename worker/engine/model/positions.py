"""Position schemes that follow the length of the text so far.

LongRoPE (arXiv 2402.13753) rotates by other frequencies once a text is longer than those that the model was
pretrained on. transformers chooses them in each pass, by the last token of the pass. So keys of a shorter
text do not suit a longer one: a generation over the switch is neither that of the short nor of the long text.
"""

from collections.abc import Iterator, Mapping
from typing import Any

#: transformers' schemes whose rotation of a token depends on its position alone
_FIXED = frozenset({None, "default", "linear", "yarn", "llama3", "proportional"})


def length_dependent(config: Any) -> str | None:
    """Name of a scheme that follows the length, or may; None if there is none.

    Args:
        config: of the language model.
    """
    return next((kind for kind, _ in _schemes(config)), None)


def position_switch(config: Any) -> int | None:
    """Most tokens of a text whose positions are those of a short text; None if all texts have the same."""
    return min((tokens for _, tokens in _schemes(config)), default=None)


def _schemes(config: Any) -> Iterator[tuple[str, int]]:
    """Schemes that follow the length, and the tokens of their longest short text."""
    parameters = getattr(config, "rope_parameters", None) or {}
    for rope in (parameters, *parameters.values()):  # of all layers, or by the kind of layer
        if not isinstance(rope, Mapping) or rope.get("rope_type") in _FIXED:
            continue
        longest = int(config.max_position_embeddings)
        if rope["rope_type"] != "dynamic":  # which begins to change there, whatever else the config names
            longest = int(rope.get("original_max_position_embeddings") or longest)
        yield str(rope["rope_type"]), longest
