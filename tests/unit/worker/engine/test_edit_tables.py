"""Edits that passes of fixed shape read from tables make the same numbers as others, to the last bit."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from actograph.contract.interventions import EditOp
from tests.support.stream_run import ask, stream_model
from worker.engine import edit_tables
from worker.engine.edit_tables import EditRows, EditTables, table_bytes
from worker.engine.edits import changed
from worker.engine.locations import ModelHooks
from worker.engine.messages import Edit, Request
from worker.engine.model_state import ModelState
from worker.engine.slot import Slot

OPS: tuple[EditOp, ...] = get_args(EditOp)
PLACES = ("resid_post.0", "mlp_out.1", "resid_post.1")


@pytest.fixture
def hooks(shared: Path) -> ModelHooks:
    return stream_model(shared, "llama")


def _edit(hooks: ModelHooks, draw: random.Random, hook: str) -> Edit:
    op = draw.choice(OPS)
    vector = np.array([draw.gauss(0, 1) for _ in range(hooks.width_of(hook))], np.float32)
    return Edit(hook=hook, op=op, coefficient=draw.uniform(-2, 2), vector=vector, positions="generated")


def _slots(hooks: ModelHooks, state: ModelState, requests: list[Request]) -> list[Slot]:
    made = []
    for request in requests:
        slot = Slot(request)
        slot.edits = state.edits(request, slot.generated)
        made.append(slot)
    return made


def test_rows_are_changed_as_elsewhere(hooks: ModelHooks, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests come and go; each has up to four edits, some of them at one location."""
    monkeypatch.setattr(edit_tables, "table_bytes", lambda *_: 1 << 20)
    draw, state, tables = random.Random(1), ModelState(hooks), EditTables(hooks, 9)
    for _ in range(20):
        requests = [
            replace(
                ask(str(i), (5, 6, 7), 9),
                edits=tuple(_edit(hooks, draw, draw.choice(PLACES)) for _ in range(draw.randrange(5))),
            )
            for i in range(8)
        ]
        slots = _slots(hooks, state, requests)
        rows: list[EditRows | None] = []
        for number, slot in enumerate(slots):
            assert slot.edits is not None
            rows.append(tables.open(8 - number, slot.edits) if slot.edits else None)
        assert tables.refused is None
        # some of them make no change in this pass
        writes = [slot.edits.writes(3, 4) if slot.edits and draw.random() < 0.8 else [] for slot in slots]
        tables.fill(list(zip(rows, writes, strict=True)))
        for hook in PLACES:
            location = hooks.edited_at(hook)
            noise = torch.Generator().manual_seed(3)
            for dtype in (torch.float32, torch.bfloat16):
                given = torch.randn(8, hooks.width_of(hook), generator=noise).to(dtype)
                given[draw.randrange(8), 0] = -0.0
                got, due = given.clone(), given.clone()
                for stage in tables.open_stages:
                    if stage.location == location:
                        tables.change(stage, got)
                for i, own in enumerate(writes):
                    for write in own:
                        if write.location == location:
                            due[i : i + 1] = changed(due[i : i + 1], write.change)
                assert torch.equal(got.view(torch.int16), due.view(torch.int16)), (hook, dtype)
        for own in rows:
            if own is not None:
                tables.close(own)
        tables.close_idle()
        assert not tables.key and not tables.open_stages


def test_only_new_places_and_kinds_open_something(hooks: ModelHooks) -> None:
    state, tables = ModelState(hooks), EditTables(hooks, 4)
    vector = np.ones(32, np.float32)

    def opened(*edits: Edit, row: int = 0) -> int:
        (slot,) = _slots(hooks, state, [replace(ask("a", (5, 6), 3), edits=edits)])
        before = tables.opened
        assert slot.edits is not None and tables.open(row, slot.edits) is not None
        return tables.opened - before

    add = Edit(hook="resid_post.0", op="add", vector=vector)
    assert opened(add) == 1
    assert opened(replace(add, coefficient=-7.0, vector=2 * vector, positions="prompt"), row=1) == 0
    assert opened(add, add, row=2) == 1, "the second edit of a request at a location"
    assert opened(replace(add, op="zero")) == 1 and opened(replace(add, op="replace")) == 0
    assert len(tables.key) == 2 and tables.trials == 3


def test_what_has_no_room_is_refused_until_others_have_ended(
    hooks: ModelHooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = ModelState(hooks)
    edits = [Edit(hook=hook, op="scale", coefficient=0.5) for hook in PLACES]
    slots = _slots(hooks, state, [replace(ask("a", (5, 6), 3), edits=(edit,)) for edit in edits])
    for patch in ({"_MOST_BYTES": 2 * 4 * 8 * 32}, {"_MOST_STAGES": 2}):
        with monkeypatch.context() as own:
            for name, value in patch.items():
                own.setattr(edit_tables, name, value)
            tables = EditTables(hooks, 3)
            rows = [tables.open(i, slot.edits or _none()) for i, slot in enumerate(slots)]
            assert [one is None for one in rows] == [False, False, True]
            assert tables.refused is not None and "no room" in tables.refused
            before = tables.key
            assert rows[0] is not None
            tables.close(rows[0])
            assert slots[2].edits is not None and tables.open(2, slots[2].edits) is not None
            assert len(tables.key) == 2 and tables.key != before, "a stage of another place has another name"


def test_integers_are_refused(shared: Path) -> None:
    hooks = stream_model(shared, "qwen3_moe")
    edit = Edit(hook="expert_indices.0", op="zero")
    (slot,) = _slots(hooks, ModelState(hooks), [replace(ask("a", (5, 6), 3), edits=(edit,))])
    tables = EditTables(hooks, 4)
    assert slot.edits is not None and tables.open(0, slot.edits) is None
    assert tables.refused is not None and "int64" in tables.refused


def test_the_tables_have_room_for_an_edit_in_each_layer(hooks: ModelHooks) -> None:
    edits = tuple(Edit(hook=f"resid_post.{layer}", op="scale", coefficient=0.5) for layer in range(2))
    (slot,) = _slots(hooks, ModelState(hooks), [replace(ask("a", (5, 6), 3), edits=edits)])
    tables = EditTables(hooks, 251)
    assert table_bytes(hooks, 251) == 16 * 4 * 256 * 32
    assert slot.edits is not None and tables.open(0, slot.edits) is not None


def _none() -> Any:
    raise AssertionError
