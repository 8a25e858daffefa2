import pytest

from actograph.progress import Bar, Lines, RateMeter, progress_text


def test_the_rate_is_that_of_the_window() -> None:
    meter = RateMeter(window=10)
    assert meter.per_second is None
    meter.add(0, 0)
    assert meter.per_second is None
    meter.add(5, 50)
    assert meter.per_second == 10
    for second in range(6, 31):
        meter.add(second, 50 + (second - 5))
    assert meter.per_second == pytest.approx(1)


def test_a_slow_job_keeps_its_rate() -> None:
    meter = RateMeter(window=10)
    meter.add(0, 0)
    meter.add(100, 5)
    assert meter.per_second == 0.05
    meter.add(200, 10)
    assert meter.per_second == 0.05


def test_no_progress_and_no_time_have_no_rate() -> None:
    meter = RateMeter()
    meter.add(1, 4)
    meter.add(1, 8)
    assert meter.per_second is None
    meter.add(2, 4)
    assert meter.per_second is None


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        (("queued", 0, 0, 0, None), "queued"),
        (("in_progress", 312, 2, 1319, 4.2), "in_progress 312/1319 (2 failed), 4.20 samples/s, ETA 4m0s"),
        (("reading", 5, 0, 10, 5.0), "reading 5/10, 5.00 samples/s, ETA 1s"),
        (("completed", 10, 0, 10, 5.0), "completed 10/10, 5.00 samples/s"),
        (("cancelled", 5, 0, 10, 5.0), "cancelled 5/10, 5.00 samples/s"),
    ],
)
def test_text(numbers: tuple[str, int, int, int, float | None], text: str) -> None:
    assert progress_text(*numbers) == text


def test_lines_are_spared_but_the_last_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(pause=3600) as shown:
        for done in range(5):
            shown.update("in_progress", done, 0, 5, None)
    assert capsys.readouterr().err.splitlines() == ["in_progress 0/5", "in_progress 4/5"]


def test_a_change_of_status_is_written_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(pause=3600) as shown:
        shown.update("queued", 0, 0, 5, None)
        shown.update("in_progress", 0, 0, 5, None)
    assert capsys.readouterr().err.splitlines() == ["queued 0/5", "in_progress 0/5"]


def test_the_bar_takes_every_state(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar() as shown:
        shown.update("queued", 0, 0, 0, None)
        shown.update("in_progress", 5, 1, 10, 2.0)
        shown.update("completed", 10, 1, 10, 2.0)
    assert "10/10" in capsys.readouterr().err
