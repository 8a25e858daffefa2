import pytest

from actograph.progress import Lines, progress_text


def test_text(subtests: pytest.Subtests) -> None:
    for text, numbers in {
        "queued": ("queued", 0, 0, 0, None),
        "in_progress 312/1319 (2 failed), 4.20 samples/s, ETA 4m0s": ("in_progress", 312, 2, 1319, 4.2),
        "reading 5/10, 5.00 samples/s, ETA 1s": ("reading", 5, 0, 10, 5.0),
        "completed 10/10, 5.00 samples/s": ("completed", 10, 0, 10, 5.0),
        "cancelled 5/10, 5.00 samples/s": ("cancelled", 5, 0, 10, 5.0),
    }.items():
        with subtests.test(text):
            assert progress_text(*numbers) == text


def test_lines_are_spared_but_the_last_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    with Lines(pause=3600) as shown:
        shown.update("queued", 0, 0, 5, None)
        for done in range(5):
            shown.update("in_progress", done, 0, 5, None)
    assert capsys.readouterr().err.splitlines() == ["queued 0/5", "in_progress 0/5", "in_progress 4/5"]
