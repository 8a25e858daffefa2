"""Values of readouts that the host reads after each token.

They may end a request or begin an edit, and those of live requests are told.
"""

from collections.abc import Sequence

import torch

from worker.engine.pass_hooks import Written
from worker.engine.slot import Slot


def values_of(slots: Sequence[Slot], written: Sequence[Written]) -> dict[Slot, dict[str, float]]:
    """The values by readout of the newest token of each slot that needs them, if the model generated it.

    Args:
        slots: for which the pass has chosen a token.
        written: rows of the pass, which have not been counted.
    """
    judged = {
        slot.record: slot
        for slot in slots
        if slot.request.values_at_once and not slot.ended and slot.computed > slot.prompt
    }
    rows = [
        (judged[one.record], one.own)
        for one in written
        if one.record in judged
        and one.own.layout.readouts
        and one.tokens[-1] == judged[one.record].computed - 1
    ]
    found: dict[Slot, dict[str, float]] = {}
    if not rows:
        return found
    # one copy from the device for all of them
    values = iter(torch.cat([own.newest[:, 0] for _, own in rows]).tolist())
    for slot, own in rows:
        found.setdefault(slot, {}).update({one.name: next(values) for one in own.layout.readouts})
    return found
