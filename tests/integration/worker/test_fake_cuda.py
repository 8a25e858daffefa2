"""The engine on a GPU that is not there, see `tests/support/fake_cuda.py`.

Goals stand with their figures of today. One that the engine misses would be a strict expected failure.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.fake_cuda_process import Cases, assert_admitted, assert_planned, assert_replayed

#: exact counts of decode passes; a change that alters one writes the new one down
COUNTS: dict[str, Any] = json.loads(
    Path(__file__).with_name("fake_cuda_counts.json").read_text(encoding="utf-8")
)
PASSES, STALLS = COUNTS["passes"], COUNTS["stalls"]
#: what is counted, the figure of today, and the most that it should be
REACHED = [
    ("launches of a layer", PASSES["0.6b"]["launches per layer"], 30),
    ("launches of a layer with two points captured", PASSES["0.6b-capture"]["launches per layer"], 30),
    ("launches of a layer of Gemma 2", PASSES["gemma2"]["launches per layer"], 70),
    ("launches of a layer in float32", PASSES["0.6b-float32"]["launches per layer"], 70),
    ("hidden temporaries of a pass", max(one["hidden temporaries"] for one in PASSES.values()), 0),
    ("stalls of a pass of 64 requests", max(rows["64"]["all"] for rows in STALLS.values()), 1),
    ("blocking copies inside the forward", max(one["stalls inside"] for one in PASSES.values()), 0),
    ("graphs captured by passes of a drain", COUNTS["captures while a drain runs"], 0),
]


@pytest.fixture(scope="module")
def cases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """The cases of the chosen tests."""
    marks = (mark for item in request.session.items for mark in item.iter_markers("fake_cuda"))
    folder = tmp_path_factory.getbasetemp()
    of_run = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    return Cases((name for mark in marks for name in mark.args), of_run)


@pytest.mark.fake_cuda("computed")
def test_latents_and_readouts_are_replayed_and_add_no_wait(cases: Cases, subtests: pytest.Subtests) -> None:
    """They leave nothing on the card. A readout that may end a request is read after each of its tokens."""
    for name, ways in cases["computed"].items():
        for way, one in ways.items():
            with subtests.test(name, way=way):
                assert (one.pop("launches inside") == 0) == (way == "replayed")
                assert one == {
                    "errors": [],
                    "replays": int(way == "replayed"),
                    "inside": 0,
                    "stalls": 2 if name == "limits" else 1,
                    "hidden temporaries": 0,
                    "captures in passes": 0,
                    "left over": 0,
                }


@pytest.mark.fake_cuda("stalls", *(f"counts-{name}" for name in PASSES))
def test_launches_and_stalls_of_decode_passes_are_as_written_down(
    cases: Cases, subtests: pytest.Subtests
) -> None:
    for name, due in PASSES.items():
        with subtests.test(name):
            assert cases[f"counts-{name}"] == due
    stalls = cases["stalls"]
    with subtests.test("stalls"):
        assert stalls == STALLS
    for name, one in stalls.items():
        with subtests.test(f"the choice of tokens, {name}"):
            assert one["8"] == one["64"], "it costs the same for any number of requests"
            assert one["64"]["all"] == stalls["greedy"]["64"]["all"], "one wait, as for greedy ones"
            assert one["64"]["passes late"] == [1], "the next pass was launched before it"
    assert not any(one["hidden temporaries"] for one in PASSES.values())
    plain, captured = PASSES["0.6b"], PASSES["0.6b-capture"]
    assert captured["launches per layer"] == plain["launches per layer"] + 2, "one for each point"
    heads = PASSES["0.6b-heads"]
    assert heads["launches per layer"] == plain["launches per layer"] + 4, "queries, keys, values, results"
    assert heads["stalls inside"] == plain["stalls inside"]
    assert captured["stalls inside"] == plain["stalls inside"], "capture adds no wait to a forward"


@pytest.mark.fake_cuda("kept-rows", "leaving")
def test_passes_launch_the_same_whatever_is_kept(cases: Cases, subtests: pytest.Subtests) -> None:
    eager, replayed = cases["kept-rows"]["eager"], cases["kept-rows"]["replayed"]
    (launches,) = eager["all"]["inside"]
    for kept, one in eager.items():
        with subtests.test("eager", kept=kept):
            # a pass that keeps no row at all leaves the copies out, two points in each of two layers
            assert set(one["inside"]) <= {launches, launches - 4}
            assert (launches in one["inside"]) == (kept != "none")
    for kept, one in replayed.items():
        with subtests.test("replayed", kept=kept):
            assert one == {"inside": [], "replays": 3, "captures in passes": 0}
    for name, one in cases["leaving"].items():
        with subtests.test("rows leave and nobody waits for them", rows=name):
            # "rows": three blocks of 64, each in one copy and one of what tells that its numbers are finite
            copies = one.pop("copies")
            assert copies == 6 if name == "rows" else copies > 0
            assert one == {"errors": [], "waits": 0, "hidden temporaries": 0}


@pytest.mark.fake_cuda("passes")
def test_prompts_and_texts_have_passes_of_their_own(cases: Cases, subtests: pytest.Subtests) -> None:
    """So every pass of texts is replayed, and prompts of 12,000 tokens are read 8,192 at a time, or fewer."""
    for name, one in cases["passes"].items():
        with subtests.test(name):
            assert one.pop("prompt tokens") == COUNTS["prompt tokens"][name]
            assert one == {
                "errors": [],
                "kinds": ["d", "p"],
                "passes of prompts in a row": 1,
                "replayed": 1,
                "stalls": 1,
                "left": True,
            }


@pytest.mark.fake_cuda("steering")
def test_passes_with_edits_are_replayed(cases: Cases, subtests: pytest.Subtests) -> None:
    """Graphs are captured when a place or kind of edits opens, whatever the vectors, and serve later runs."""
    found = cases["steering"]
    at_load = found.pop("at load")
    assert (found.pop("captures while a drain runs"), found.pop("unnamed")) == (0, [])
    assert list(found) == ["add", "other vectors", "two of each request", "add again", "scale"]
    for name, one in found.items():
        with subtests.test(name):
            assert (one["errors"], one["requests"]) == ([], 24)
            assert one["captures"] == (0 if name in {"other vectors", "add again"} else at_load)
            assert one["replays"] == one["passes"] > 0
            assert (one["launches inside"], one["stalls"]) == (0, 2)


@pytest.mark.fake_cuda("graphs", "failed-capture", "returned-bytes", "refused")
def test_graphs_serve_all_waves_and_leave_no_bytes(cases: Cases, subtests: pytest.Subtests) -> None:
    graphs, returned = cases["graphs"], cases["returned-bytes"]
    with subtests.test("waves and orders"):
        assert_replayed(graphs)
    with subtests.test("a pass captures no graph"):
        captured = graphs["captures while a drain runs"]
        assert captured == COUNTS["captures while a drain runs"] and graphs["at load"] > 1
    with subtests.test("a graph that cannot be captured means eager passes"):
        assert cases["failed-capture"] == {"graphs": 0, "errors": [], "length": 64}
    with subtests.test("a model without memory for a run is refused with the numbers"):
        passes, keys = cases["refused"]["passes"], cases["refused"]["keys"]
        assert "a pass of 258 requests does not fit" in passes
        assert "0 bytes are left for keys, values and rows" in keys
    with subtests.test("a run and a plan give their bytes back"):
        assert len(returned) == 5 and not any(returned.values())


@pytest.mark.fake_cuda("prompts", "choice")
def test_the_plan_of_a_pass_without_a_card_is_what_the_engine_takes(cases: Cases) -> None:
    for one in cases["prompts"]:
        assert 0.9 < one["planned"] / one["bytes"] < 1.2, one
    assert_planned(cases["choice"])


@pytest.mark.fake_cuda("memory")
def test_memory_of_a_run_counts_from_its_start_on_the_models_device(cases: Cases) -> None:
    found = cases["memory"]
    large, small = found["64 requests"], found["2 requests"]
    assert large["before"] == 0 and large["after"] == found["arena of 64"] < large["peak"]
    # the second run finds the arena of the first, and its peak is its own
    assert small["before"] == small["after"] == found["arena of 64"]
    assert small["after"] < small["peak"] < large["peak"]
    assert found["watch"] == dict.fromkeys(("before", "after", "peak"), found["arena of 2"])
    assert found["unnamed"] == []


@pytest.mark.fake_cuda("admission-0.6b-16gb")
def test_every_capture_is_admitted_on_a_small_card_at_full_depth(cases: Cases) -> None:
    runs = cases["admission-0.6b-16gb"]
    assert [(one["card"], one["capture"]) for one in runs] == [
        (16, capture) for capture in ("nothing", "one", "all")
    ]
    assert_admitted(runs)


@pytest.mark.parametrize(
    ("figure", "goal"), [pytest.param(figure, goal, id=what) for what, figure, goal in REACHED]
)
def test_a_goal_is_reached(figure: int, goal: int) -> None:
    assert figure <= goal
