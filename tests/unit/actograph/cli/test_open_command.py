"""`actograph open`."""

import webbrowser

import pytest

from tests.support.command_line import runner

JOB = "job_" + "0a" * 16


def test_it_opens_the_page_of_the_item(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def start(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", start)
    monkeypatch.setenv("ACTOGRAPH_URL", "http://127.0.0.1:8420")
    run = runner(capsys)
    assert run("open")[:2] == (0, "http://127.0.0.1:8420/\n")
    assert run("open", JOB)[0] == 0
    assert run("open", "--print", "ses_" + "0" * 32)[1].endswith("/sessions/ses_" + "0" * 32 + "\n")
    assert opened == ["http://127.0.0.1:8420/", f"http://127.0.0.1:8420/jobs/{JOB}"]


@pytest.mark.parametrize("item", ["job_1", "smp_" + "0" * 32, "../x", "job_" + "/" * 32])
def test_an_item_without_a_page_is_refused(
    item: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webbrowser, "open", pytest.fail)
    code, _, said = runner(capsys)("open", item)
    assert code != 0
    assert "no job and no session" in said


def test_without_a_browser_the_address_is_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    code, shown, said = runner(capsys)("open")
    assert code == 0
    assert shown.startswith("http")
    assert "by hand" in said
