"""State that requests of a model share lives as long as they do."""

import gc
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.support.stream_run import StreamRun, ask, prompts, stream_model
from worker.engine.messages import Capture, Edit, Request
from worker.engine.model_state import ModelState


def _edited(key: str, vector: NDArray[np.float32]) -> Request:
    return ask(key, (5, 6), 3, edits=(Edit(hook="resid_post.0", op="add", vector=vector),))


def test_equal_edits_are_one_change_until_the_last_request_ends(shared: Path) -> None:
    hooks = stream_model(shared, "llama")
    state = ModelState(hooks)
    one, same, other = (
        state.edits(_edited(key, np.full(32, number, np.float32)), [])
        for key, number in (("one", 1), ("same", 1), ("other", 2))
    )
    changes = [edits.writes(0, 1)[0].change for edits in (one, same, other)]
    assert changes[0] is changes[1] and changes[0] is not changes[2]
    assert len(state._changes) == 2
    del one, same, other, changes
    gc.collect()
    assert not state._changes
    run = StreamRun([_edited(str(i), np.full(32, i, np.float32)) for i in range(30)])
    most = 0

    def count() -> None:
        nonlocal most
        most = max(most, len(state._changes))

    run.on_beat = count
    run.run(hooks, most=4, state=state)
    run.running = lambda: 0  # it refers to the run's loop
    gc.collect()
    assert not run.errors and most <= 4 + 1 and not state._changes


def test_sums_go_on_from_turn_to_turn_until_they_are_forgotten(shared: Path) -> None:
    hooks = stream_model(shared, "llama")
    state = ModelState(hooks)
    (prompt,) = prompts((9,))
    turn = ask("turn", prompt, 0, capture=Capture(hooks=("embed",), reduce="mean"), sums="talk")
    counts = []
    for _ in range(3):
        (chunk,) = StreamRun([turn]).run(hooks, state=state).chunks["turn"]["embed"]
        counts.append(chunk.over)
    state.forget("talk")
    (chunk,) = StreamRun([turn]).run(hooks, state=state).chunks["turn"]["embed"]
    assert [*counts, chunk.over] == [9, 18, 27, 9]
    (alone,) = StreamRun([replace(turn, sums=None)]).run(hooks, state=state).chunks["turn"]["embed"]
    assert alone.over == 9
