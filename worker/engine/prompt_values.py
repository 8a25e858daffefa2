"""The value of a readout at one token of a prompt that is only read, and of each of its variants."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from actograph.contract.errors import ActographError, CaptureFailed, InvalidRequest
from actograph.contract.interventions import check_width
from worker.engine.locations import ModelHooks
from worker.engine.messages import ReadoutAt, Request
from worker.engine.model.host_memory import to_device


class PromptValue:
    """Values of one request. Nothing waits for the device before the end.

    Attributes:
        location: whose rows are read, after all edits.
        token: whose row is read.
    """

    def __init__(self, request: Request, value_at: ReadoutAt, hooks: ModelHooks) -> None:
        self._request, self._readout = request, value_at.readout
        self.location, self.token = hooks.edited_at(value_at.readout.hook), value_at.token
        self._own: Tensor | None = None
        #: of some variants: their numbers in the request, and their values
        self._of_variants: list[tuple[Sequence[int], Tensor]] = []

    def take(self, rows: Tensor) -> None:
        """Take the row of the token, [1, width]."""
        self._own = self._values(rows)

    def take_variants(self, numbers: Sequence[int], rows: Tensor) -> None:
        """Take its row in each of these variants, [variants, width]."""
        self._of_variants.append((numbers, self._values(rows)))

    def _values(self, rows: Tensor) -> Tensor:
        """As a capture's readouts: products and sums in float64, and values in float32."""
        vector = to_device(np.asarray(self._readout.vector, np.float64), rows.device)
        flat = rows.reshape(len(rows), -1).to(torch.float64)
        return (flat @ vector + self._readout.bias).to(torch.float32)

    def result(self) -> tuple[float | None, ActographError | None]:
        """The value of the prompt, or the error that prevented it; neither if it was not read."""
        if self._own is None:
            return None, None
        value = float(self._own[0])
        return (value, None) if math.isfinite(value) else (None, self._not_finite())

    def of_variants(self) -> tuple[tuple[float | None, ...], ActographError | None]:
        """The value of each variant, None for one that cannot change it; or the error that prevented them."""
        found: list[float | None] = [None] * len(self._request.variants)
        for numbers, values in self._of_variants:
            for number, value in zip(numbers, values.tolist(), strict=True):
                found[number] = value
        if all(value is None or math.isfinite(value) for value in found):
            return tuple(found), None
        return (), self._not_finite()

    def _not_finite(self) -> ActographError:
        return CaptureFailed(f"{self._readout.name}: a value is no finite number")


def check_value(request: Request, hooks: ModelHooks) -> None:
    """Refuse a value that no pass computes.

    Raises:
        InvalidRequest: the request writes, or the token has no row.
        UnknownHook: the model has no such hook.
    """
    value_at = request.value_at
    if value_at is None:
        return
    hook, prompt = value_at.readout.hook, len(request.prompt_ids)
    info = hooks.structure.module_tensors[hooks.edited_at(hook)]
    if request.most_generated or not 0 <= value_at.token < prompt:
        raise InvalidRequest(
            f"{request.key}: a value is read at a token of a prompt that is only read; there is no token "
            f"{value_at.token} of {prompt}"
        )
    if info.tail_only and value_at.token != prompt - 1:
        raise InvalidRequest(f"{request.key}: {hook} has a row of the last token of a prompt alone")
    check_width(hook, value_at.readout.width, hooks.width_of(hook), "value_at")
