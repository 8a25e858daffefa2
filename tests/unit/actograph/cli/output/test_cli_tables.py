import pytest

from actograph.cli.output import tables
from actograph.progress import duration


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    text = tables.render(("A", "LONG"), [["xx", "1"], ["日本", "234567"]], right=("LONG",))
    assert text.splitlines() == ["A        LONG", "xx          1", "日本   234567"]


def test_no_spaces_at_the_end_of_lines() -> None:
    assert tables.render(("A", "B"), [["x", ""]]) == "A   B\nx"


def test_text_of_others_cannot_steer_the_terminal() -> None:
    assert tables.render(("A",), [["\x1b[31mred\nnext\u202e"]]) == "A\n [31mred next"


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (1_500_000_000, "1.5 GB"),
        (10**18, "1000.0 PB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert tables.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0s"), (59.6, "1m0s"), (61, "1m1s"), (3600, "1h0m"), (90000, "1d1h"), (-3, "0s")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("ago", "text"), [(0, "0s"), (59, "59s"), (60, "1m"), (7200, "2h"), (86400 * 3, "3d")]
)
def test_ages(ago: int, text: str) -> None:
    assert tables.age(1000, now=1000 + ago) == text


def test_a_clock_that_is_behind_gives_no_negative_age() -> None:
    assert tables.age(1000, now=990) == "0s"


def test_ids_are_shortened_after_their_prefix() -> None:
    whole = "job_" + "0123456789abcdef" * 2
    assert tables.shorten(whole) == "job_0123456789ab"
    assert tables.shorten(whole, full=True) == whole
