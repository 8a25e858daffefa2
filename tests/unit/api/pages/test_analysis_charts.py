"""Charts of analyses as coordinates."""

import pytest

from api.pages.analyses.charts import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, FeatureMap, LineChart, Series


def test_values_stand_inside_the_frame_in_their_order() -> None:
    line = Series(name="a", values=[3.0, -1.0, 2.0])
    chart = LineChart("t", ["0", "1", "2"], [line])
    marks = chart.marks(line)
    assert [mark.value for mark in marks] == [3.0, -1.0, 2.0]
    assert [mark.x for mark in marks] == sorted(mark.x for mark in marks)
    assert marks[0].y < marks[2].y < marks[1].y  # up is larger
    assert all(LEFT < mark.x < WIDTH - RIGHT and TOP <= mark.y <= HEIGHT - BOTTOM for mark in marks)


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_a_line_breaks_where_a_value_is_missing(value: float | None) -> None:
    line = Series(name="a", values=[1.0, 2.0, value, 3.0, 4.0, value])
    chart = LineChart("t", list("abcdef"), [line])
    assert [len(run.split()) for run in chart.lines(line)] == [2, 2]
    assert len(chart.marks(line)) == 4


def test_a_logarithmic_axis_has_powers_of_ten_and_no_zero() -> None:
    line = Series(name="a", values=[1.0, 10.0, 0.0, 100.0])
    chart = LineChart("t", list("abcd"), [line], is_log=True)
    marks = chart.marks(line)
    assert [mark.value for mark in marks] == [1.0, 10.0, 100.0]
    assert marks[0].y - marks[1].y == pytest.approx(marks[1].y - marks[2].y, abs=0.2)
    assert [tick.text for tick in chart.ticks()] == ["1", "10", "100"]


def test_a_logarithmic_axis_without_powers_of_ten_has_round_values() -> None:
    line = Series(name="a", values=[2.5, 3.5])
    chart = LineChart("t", ["0", "1"], [line], is_log=True)
    assert [tick.text for tick in chart.ticks()] == ["2.5", "3", "3.5"]


@pytest.mark.parametrize(
    ("limits", "texts"),
    [
        ((0.0, 1.0), ["0", "0.5", "1"]),
        ((0.0, 0.8), ["0", "0.2", "0.4", "0.6", "0.8"]),
        ((-30.0, 100.0), ["0", "50", "100"]),
    ],
)
def test_ticks_are_round_numbers(limits: tuple[float, float], texts: list[str]) -> None:
    chart = LineChart("t", ["a"], [], limits=limits)
    assert [tick.text for tick in chart.ticks()] == texts


def test_equal_values_and_no_values_make_a_chart() -> None:
    for values in ([2.0, 2.0], [0.0], [None], []):
        line = Series(name="a", values=values)
        chart = LineChart("t", ["x"] * len(values), [line])
        assert len(chart.marks(line)) == sum(value is not None for value in values)
        assert chart.ticks()


def test_few_of_many_labels_are_written() -> None:
    chart = LineChart("t", [str(layer) for layer in range(80)], [])
    assert [place.text for place in chart.places()] == [str(layer) for layer in range(0, 80, 5)]


def test_intervals_need_both_ends() -> None:
    line = Series(name="a", values=[0.5, 0.5], lows=[0.4, None], highs=[0.7, None])
    ((_, low, high),) = LineChart("t", ["0", "1"], [line], limits=(0, 1)).bars(line)
    assert high < low


def test_a_map_has_a_cell_for_each_layer_of_a_feature() -> None:
    found = FeatureMap(title="t", layers=[2, 4, 6], rows=[("7", [2, 6]), ("9", [4, 99])])
    assert [text for _, _, text in found.cells()] == [
        "feature 7, layer 2", "feature 7, layer 6", "feature 9, layer 4",
    ]  # fmt: skip
    assert all(x < found.width and y < found.height for x, y, _ in found.cells())
