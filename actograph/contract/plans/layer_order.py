"""Which layer a hook belongs to, and the chunks of layers whose rows are held together in prefill."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import groupby

from actograph.contract.resources import ModelStructure


class LayerOrder:
    """Layers by the order in which a forward pass reaches a model's locations.

    What comes before the first layer counts to it; what comes after the last one is beyond it.
    """

    def __init__(self, structure: ModelStructure) -> None:
        self._locations: Mapping[str, str] = structure.locations
        self._order = {location: i for i, location in enumerate(structure.module_locations)}
        last = structure.num_layers - 1
        self._starts = [self._order[self._locations[f"resid_pre.{i}"]] for i in range(last + 1)]
        self._end = self._order[self._locations[f"resid_post.{last}"]]

    def layer_of(self, hook: str) -> int:
        """Layer of a canonical hook or module location, counted from 0; `end` for what comes after them.

        Raises:
            KeyError: the model has no such hook.
        """
        place = self._order[self._locations.get(hook, hook)]
        if place > self._end:
            return self.end
        return max(0, bisect_right(self._starts, place) - 1)

    @property
    def end(self) -> int:
        """What stands for the layer of the final norm and the logits: the number of layers."""
        return len(self._starts)


def chunks_of(layers: Sequence[int], size: int, end: int) -> list[range]:
    """Consecutive hooks in chunks of at most `size` layers that are wanted.

    Args:
        layers: of each hook, ascending.
        end: what stands for the end of the model, which is a chunk of its own.
    """
    runs = [(layer, len(list(run))) for layer, run in groupby(layers)]
    chunks: list[range] = []
    start = held = stop = 0
    for layer, hooks in runs:
        if held and (held == size or layer == end):
            chunks.append(range(start, stop))
            start, held = stop, 0
        stop, held = stop + hooks, held + 1
    if held:
        chunks.append(range(start, stop))
    return chunks
