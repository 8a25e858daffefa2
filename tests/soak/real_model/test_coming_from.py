"""Pages for users of other tools: both sides of each task run as they stand, and give the same numbers."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import other_programs
from tests.support.availability import unavailable
from tests.support.servers import Unavailable

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

START = Path(__file__).resolve().parents[3] / "docs/start"
BLOCK = re.compile(r"^<!-- run with (\w+) -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FIRST_FIGURE = re.compile(r"^<!-- run on smollm2 -->\n```python\n(.*?)^with Client", re.DOTALL | re.MULTILINE)
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
SAVED = """
import json
import numpy as np

np.savez({out!r}, rows=rows, logits=logits)
print(json.dumps({{"text": text, "accuracy": accuracy}}))
"""


def transformer_lens() -> Path:
    try:
        return other_programs.sae()
    except Unavailable as error:
        unavailable(str(error))


@pytest.mark.parametrize(
    ("page", "tool", "python"),
    [
        ("from-nnsight.md", "nnsight", lambda: Path(sys.executable)),
        ("from-transformerlens.md", "transformer_lens", transformer_lens),
    ],
)
def test_both_sides_give_the_same(
    url: str,
    smollm2: Path,
    page: str,
    tool: str,
    *,
    python: Callable[[], Path],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    blocks = BLOCK.findall((START / page).read_text(encoding="utf-8"))
    assert [name for name, _ in blocks] == [tool, "actograph"] * 4
    (statements,) = FIRST_FIGURE.findall((START / "first-figure.md").read_text(encoding="utf-8"))
    statements = statements.replace("from actograph import Client\n", "")
    out = str(tmp_path / "theirs.npz")
    program = tmp_path / "theirs.py"  # nnsight reads the lines of a program's file
    theirs = "\n".join([statements, *(text for name, text in blocks if name == tool)])
    program.write_text(theirs.replace(HUB, str(smollm2)) + SAVED.format(out=out), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    printed = subprocess.run(
        [python(), program], capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert printed.returncode == 0, printed.stderr
    due = json.loads(printed.stdout.splitlines()[-1])
    monkeypatch.setenv("ACTOGRAPH_URL", url)
    names: dict[str, Any] = {}
    ours = "\n".join([statements, *(text for name, text in blocks if name == "actograph")])
    exec(compile(ours, page, "exec"), names)
    with np.load(out) as arrays:
        np.testing.assert_allclose(names["rows"], arrays["rows"], rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(names["logits"], arrays["logits"], rtol=1e-3, atol=1e-2)
    assert names["text"] == due["text"]
    # each chooses its own strength of regularisation
    assert min(names["accuracy"], due["accuracy"]) > 0.85
