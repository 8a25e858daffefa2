"""Worked examples of the analysis pages are run, and print what the pages show."""

import contextlib
import io
import re
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]
EXAMPLE = re.compile(
    r"^<!-- example -->\n```python\n(?P<code>.*?)^```\n+```text\n(?P<shown>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
EXAMPLES = [
    pytest.param(found["code"], found["shown"], id=f"{page.name}:{number}")
    for page in sorted((REPO / "docs" / "analysis").glob("*.md"))
    for number, found in enumerate(EXAMPLE.finditer(page.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize(("code", "shown"), EXAMPLES)
def test_examples_print_what_the_page_shows(
    code: str, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "example", "exec"), {"__name__": "example"})
    assert printed.getvalue() == shown
