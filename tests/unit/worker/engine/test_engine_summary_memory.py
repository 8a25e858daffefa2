"""What `reduce` and `stats` take on the device, counted allocation by allocation, against the plan."""

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from actograph import plans
from actograph.contract.models import HookInfo, ModelStructure
from actograph.contract.specs import CaptureSpec
from worker.engine.locations import Point
from worker.engine.requests import RowShaping, StatisticsOptions
from worker.engine.rows.summaries import Summaries

WIDTH, BATCH, POINTS = 512, 3, 5


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of tensors that operations made and that are still alive."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = {t.untyped_storage()._cdata for t in tree_leaves(args) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in given:
                size = tensor.untyped_storage().nbytes()
                self.live += size
                self.peak = max(self.peak, self.live)
                weakref.finalize(tensor.untyped_storage(), self._free, size)
        return result

    def _free(self, size: int) -> None:
        self.live -= size


@pytest.mark.parametrize(
    "fields",
    [
        {"stats": True},
        {"stats": {"threshold": 1.0, "tensors": False}},
        {"reduce": "mean"},
        {"reduce": "max"},
        {"reduce": "last"},
        {"reduce": "mean", "stats": {"threshold": 1.0}},
    ],
    ids=str,
)
def test_the_plan_counts_what_summing_up_takes_at_its_peak(fields: dict[str, Any]) -> None:
    capture = CaptureSpec.model_validate(fields)
    hooks = [f"resid_post.{i}" for i in range(POINTS)]
    structure = ModelStructure(
        model="m", architecture="A", num_layers=POINTS, hidden_size=WIDTH, vocab_size=9, context_length=64,
        dtype="float32", device="cpu", num_parameters=1, chat_template=False, eos_token_ids=[1],
        hooks={hook: HookInfo(location=hook, width=WIDTH, dtype="float32") for hook in hooks},
        module_locations=hooks,
    )  # fmt: skip
    told = BATCH * plans.capture_need(structure, hooks, capture, prompt_tokens=10).summaries
    stats = capture.stats
    summaries = Summaries(
        [Point((hook,)) for hook in hooks],
        batch=BATCH,
        shaping=RowShaping(
            reduce=capture.reduce,
            statistics=None if stats is None else StatisticsOptions(threshold=stats.threshold),
        ),
        dtype=None,
    )
    row = torch.randn(BATCH, 1, WIDTH)
    steps = torch.randn(1, BATCH, POINTS, WIDTH)
    for point in range(POINTS):
        summaries.begin(point, row)
        summaries.of_strip(point, row, [0] * BATCH)
    summaries.of_steps(range(POINTS), steps, [1] * BATCH)
    with Allocations() as seen:
        # the third merge replaces a summary that was made under count
        for _ in range(3):
            summaries.of_steps(range(POINTS), steps, [1] * BATCH)
    flags = 64  # whether a sample has had a row, a byte per hook and sample
    assert 0.6 * told < seen.peak <= told + flags, (seen.peak, told)
