"""README's first example stays short: from problems to a probe."""

import ast
import re
from pathlib import Path

README = Path(__file__).resolve().parents[3] / "README.md"


def test_the_first_example_is_short_and_has_no_dict() -> None:
    block = re.search(r"<!-- run -->\n```python\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)
    assert block is not None
    lines = [line for line in block[1].splitlines() if line.strip()]
    assert len(lines) <= 12
    assert not any(isinstance(node, ast.Dict) for node in ast.walk(ast.parse(block[1])))
    for step in ("client.evaluate", ".wait(", ".matrix(", "probe("):
        assert step in block[1]
