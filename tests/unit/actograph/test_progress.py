import sys
from types import SimpleNamespace

import pytest

from actograph.progress import Bar, Lines, RateMeter, meter, progress_text, view


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


def test_a_notebook_has_a_bar_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []

    class Handle:
        def update(self, content: str) -> None:
            shown.append(content)

    def display(content: str, display_id: bool) -> Handle:
        assert display_id
        shown.append(content)
        return Handle()

    ipython = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    with meter("rows") as update:
        update("reading", 0, 8)
        update("<reading>", 4, 8, 1)
    assert shown == [
        '<progress value="0" max="8"></progress> reading 0/8',
        '<progress value="4" max="8"></progress> &lt;reading&gt; 4/8 (1 failed)',
    ]
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    assert isinstance(view(), Lines)
