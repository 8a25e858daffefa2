import time

import pytest

from actograph.contract import models, operations
from actograph.contract.analyses import ComparisonResult, OutliersResult
from actograph.contract.errors import InvalidRequest
from actograph.short_texts import age, size
from actograph.tables import cut, describe, field_of, ordered, render


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    text = render(("A", ">LONG"), [["xx", 1], ["日本", "234567"], ["x", None]])
    assert text.splitlines() == ["A        LONG", "xx          1", "日本   234567", "x"]


def test_text_of_others_cannot_steer_the_terminal() -> None:
    assert render(("A",), [["\x1b[31mred\nnext\u202e"]]) == "A\n [31mred next"


def test_sizes_and_ages(subtests: pytest.Subtests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1e9)
    for text, shown in [
        *(("999 bytes", size(999)), ("1.0 kB", size(1000)), ("1.5 GB", size(1_500_000_000))),
        *(("0s", age(1e9 + 10)), ("59s", age(1e9 - 59)), ("1m", age(1e9 - 60)), ("3d", age(1e9 - 3 * 86400))),
    ]:
        with subtests.test(text):
            assert shown == text


def test_a_text_is_cut_by_the_columns_that_it_takes() -> None:
    assert [cut("longer", 5), cut("two\nlines", 20), cut("答案在此", 5)] == ["long…", "two lines", "答案…"]


def test_a_resource_is_described_by_its_fields_and_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1000.0)
    pause = operations.QueuePause(kind="disk", reason="full", since=940)
    queue = operations.QueueState(
        pauses=[pause], jobs={"queued": 2, "running": 0}, samples={}, next=["job_1", "job_2"], messages=None,
        workers={},
    )  # fmt: skip
    described = describe(queue, ["paused", "sessions_to_store"], expires_at=4600, session_bytes=2048)
    assert described.splitlines() == [
        *("jobs:          2 queued", "next:          job_1, job_2", "expires at:    in 1h0m"),
        *("session bytes: 2.0 kB", "", "KIND   REASON   SINCE", "disk   full     1m"),
    ]
    structure = models.HookInfo(location="a.output", width=96, dtype="float32")
    assert describe(structure, hooks={"a": structure}).splitlines()[-2:] == [
        "HOOKS   WIDTH   DTYPE     TAIL ONLY   LOCATION",
        "a          96   float32   no          a.output",
    ]


def test_entries_are_sorted_by_any_field_and_those_without_it_come_last() -> None:
    pauses = [
        operations.QueuePause(kind=kind, reason="full", since=since, by=by)
        for kind, since, by in [("disk", 3, "b"), ("disk", 1, None), ("disk", 2, "a")]
    ]
    assert [one.since for one in ordered(pauses, "since")] == [1, 2, 3]
    assert [one.since for one in ordered(pauses, "-by")] == [3, 2, 1]
    with pytest.raises(InvalidRequest, match="there is no field 'size'; the fields are kind, "):
        ordered(pauses, "size")
    queue = operations.QueueState(
        pauses=pauses, jobs={"queued": 2}, samples={}, next=[], messages=None, workers={}
    )
    assert (field_of(queue, "jobs.queued"), field_of(queue, "jobs.none")) == (2, None)


def test_long_tables_of_a_result_end_with_where_the_rest_is() -> None:
    features = [{"feature": number, "layers": [1]} for number in range(25)]
    found = OutliersResult(
        spec={},
        sessions=1,
        positions=3,
        outlier_features=features,
        massive_activations=[],
        massive_dropped=0,
        hooks={f"resid_post.{layer}": {"largest": 1.0} for layer in range(30)},
    )
    shown = str(found)
    assert "5 more outlier features are in result.json" in shown
    assert "resid_post.29" in shown and "hooks are in" not in shown


def test_a_comparison_says_which_side_is_subtracted(subtests: pytest.Subtests) -> None:
    job, other = (f"job_{letter * 32}" for letter in "ab")
    by_label = {"label": "label", "sessions": {"jobs": [job]}}
    jobs = {"sessions": {"jobs": [job], "condition": ""}, "other": {"jobs": [other], "condition": "EP02"}}
    for spec, sides, says in [
        (by_label, (0.0, 1.0), "label = 1, minus label = 0"),
        (by_label, ("false", "true"), "label = true, minus label = false"),
        (jobs, (None, None), "job_bbbbbbbbbbbb EP02, minus job_aaaaaaaaaaaa without a condition"),
        ({"sessions": {"ids": ["a", "b"]}, "other": {"ids": ["c"]}}, (None, None), "1 sessions, minus 2"),
    ]:
        with subtests.test(says):
            found = ComparisonResult(spec=spec, sessions=2, hooks={}, first=sides[0], second=sides[1])
            assert f"differences: {says}" in str(found)
