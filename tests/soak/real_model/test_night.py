"""The page of the night on a real model: its commands and its script run, and its figures come out."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from actograph.client import Client
from tests.support.command_line import Run, runner

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

PAGE = Path(__file__).resolve().parents[3] / "docs/start/night.md"
BLOCK = re.compile(r"^<!-- run on smollm2 -->\n```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SHARE = re.compile(r"^gsm8k +(\w+) +strict-match +4 +exact_match +([\d.]+)", re.MULTILINE)
PROBE = re.compile(r"^(layer \d+|length|bag_of_words): AUROC ([\d.]+)", re.MULTILINE)


@pytest.fixture
def run(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Command lines, in an empty folder."""
    monkeypatch.setenv("ACTOGRAPH_URL", url)
    monkeypatch.chdir(tmp_path)
    return runner(capsys)


def test_the_page_shows_what_comes_out(
    client: Client, run: Run, shared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (_, submit), (_, watch), (_, script), (_, clean) = BLOCK.findall(text)
    assert submit in (PAGE.parents[2] / "README.md").read_text(encoding="utf-8")
    files = shared / "data/gsm8k"
    datasets = ["--dataset", files / "test.jsonl", "--fewshot-dataset", files / "train.jsonl"]
    code, _, err = run(*shlex.split(submit.replace("\\\n", " "))[1:], *datasets)
    assert code == 0, err
    job = client.jobs.list(tag="night").one().wait()
    code, out, _ = run(*shlex.split(watch.replace("$(actograph jobs ls -q --tag night)", job.id))[1:])
    assert code == 0 and [name for name, _ in SHARE.findall(out)] == ["plain", "calculator"]
    results = job.results().conditions
    for name, share in re.findall(
        r"^gsm8k +(\w+) +strict-match +4 +exact_match +([\d.]+)", text, re.MULTILINE
    ):
        assert results[name].metrics["exact_match,strict-match"] == pytest.approx(float(share), abs=0.02)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(script, str(PAGE), "exec"), names)
    printed = capsys.readouterr().out
    # another CPU rounds in another way, and a text that parts from ours has other calculations
    assert 80 < len(names["right"]) < 140 and 0.4 < names["right"].mean() < 0.65
    due, found = ({name: float(value) for name, value in PROBE.findall(one)} for one in (text, printed))
    assert due.keys() == found.keys() and len(due) == 7
    assert found == pytest.approx(due, abs=0.12)
    for line in clean.splitlines():
        assert run(*shlex.split(line.replace("$(actograph jobs ls -q --tag night)", job.id))[1:])[0] == 0
    assert Path("night/summary.json").is_file()
