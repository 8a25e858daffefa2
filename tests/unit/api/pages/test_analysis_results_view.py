"""Results of analyses as charts and tables, also of kinds without a view of their own."""

from typing import Any

import pytest

from api.pages.analyses.results_view import view
from api.pages.analyses.tables import MAX_ROWS, cell, table


def test_an_unknown_kind_gets_facts_tables_and_charts_of_its_hooks() -> None:
    shown = view(
        {
            "kind": "new",
            "sessions": 4,
            "hooks": {
                "resid_post.10": {"score": 0.5, "names": ["a"], "deep": [{"a": 1}]},
                "resid_post.2": {"score": 0.25, "names": []},
            },
            "found": [{"feature": 3, "value": 1.5}, {"feature": 4}],
            "ids": {"resid_post.2": "vec_1"},
            "odd": [[1, 2], {"a": 1}],
            "none": [],
        }
    )
    assert [(name, one.text) for name, one in shown.facts] == [("sessions", "4"), ("none", "")]
    (chart,) = shown.charts
    assert chart.title == "Score of resid_post"
    assert [mark.label for mark in chart.marks(chart.series[0])] == ["2", "10"]
    tables = {one.title: one for one in shown.tables}
    assert [one.text for one in tables["Found"].rows[1]] == ["4", "–"]
    assert [one.text for one in tables["Hooks"].rows[0]] == ["resid_post.10", "0.5", "a"]
    assert [one.text for one in tables["Ids"].rows[0]] == ["resid_post.2", "vec_1"]
    assert shown.rest == {"hooks": {"resid_post.10 deep": [{"a": 1}]}, "odd": [[1, 2], {"a": 1}]}


def test_lists_of_jobs_with_hooks_get_charts_and_tables() -> None:
    part = {
        "job_id": "a",
        "sessions": 3,
        "hooks": {f"resid_post.{n}": {"agreement": n / 4} for n in range(4)},
    }
    shown = view({"kind": "lens", "jobs": [part]})
    assert [chart.title for chart in shown.charts] == ["Agreement of resid_post"]
    assert [(one.title, one.total) for one in shown.tables] == [("Jobs", 1), ("Hooks", 4)]
    both = view({"kind": "lens", "jobs": [part, part | {"job_id": "b"}]})
    assert [one.title for one in both.tables] == ["Jobs", "A hooks", "B hooks"]
    assert both.charts[1].title == "B agreement of resid_post"


@pytest.mark.parametrize("kind", ["probe", "compare", "outliers", "new", None])
def test_a_result_without_its_parts_is_no_error(kind: str | None) -> None:
    assert view({"kind": kind}).rest == {}
    assert view({}).tables == []


def test_a_probe_without_baselines_and_intervals() -> None:
    result: dict[str, Any] = {"kind": "probe", "hooks": {"embed": {"auroc": None}, "mlp_in.0": {"auroc": 1}}}
    shown = view(result)
    assert [chart.title for chart in shown.charts] == [
        "AUROC of embed", "Accuracy of embed", "AUROC of mlp_in", "Accuracy of mlp_in",
    ]  # fmt: skip
    assert [len(chart.marks(chart.series[0])) for chart in shown.charts] == [0, 0, 1, 0]


def test_long_tables_are_cut_and_say_so() -> None:
    found = table("t", ["a_b"], ([number] for number in range(MAX_ROWS + 5)))
    assert (found.head, len(found.rows), found.total) == (["A b"], MAX_ROWS, MAX_ROWS + 5)


def test_cells() -> None:
    assert cell(True).text == "yes"
    assert cell(1234567).text == "1,234,567"
    assert cell([0.5, 0.75]).text == "0.5 to 0.75"
    assert cell("ses_" + "a" * 32).href == "/sessions/ses_" + "a" * 32
    assert cell("javascript:alert(1)").href == ""
    assert len(cell("x" * 10_000).text) == 300
