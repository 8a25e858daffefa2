"""The tutorial on a real model runs as it stands, and its table has the numbers that come out."""

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

PAGE = Path(__file__).resolve().parents[3] / "docs/start/first-figure.md"
BLOCK = re.compile(r"^<!-- run on smollm2 -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^\| (\d+) \| ([\d.]+) \| ([\d.]+) to ([\d.]+) \|$", re.MULTILINE)


def test_the_page_shows_what_comes_out(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ACTOGRAPH_URL", url)
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    (block,) = BLOCK.findall(text)
    short = block[block.index("with Client()") :]
    assert short in (PAGE.parents[2] / "README.md").read_text(encoding="utf-8")
    exec(compile(block, str(PAGE), "exec"), names)
    hooks = names["truth"].result.hooks
    rows = ROW.findall(text)
    assert len(rows) > 5
    for layer, *numbers in rows:
        found = hooks[f"resid_post.{layer}"]
        due = [found["auroc"], *found["auroc_interval"]]
        # another CPU rounds in another way
        assert [float(number) for number in numbers] == pytest.approx(due, abs=0.05), layer
    assert (tmp_path / "truth.png").stat().st_size > 10_000
    assert "resid_post.12" in capsys.readouterr().out
