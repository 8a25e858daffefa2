"""The worked example of docs/interventions.md, run as it stands, says what the page says it prints."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from actograph.client import ApiError, Client

if TYPE_CHECKING:
    from tests.e2e.conftest import Up

pytestmark = pytest.mark.e2e

PAGE = Path(__file__).resolve().parents[2] / "docs" / "interventions.md"


def test_the_example_steers_the_demo_model(up: Callable[..., "Up"], tmp_path: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    printed = re.search(r"It printed:\n\n```\n(.*?)```", page, re.DOTALL)
    assert program is not None and printed is not None
    (tmp_path / "example.py").write_text(program[1], encoding="utf-8")
    service = up()
    service.await_ready()
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "example.py")],
        env={**os.environ, "ACTOGRAPH_URL": service.url},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    lines, promised = ran.stdout.splitlines(), printed[1].splitlines()
    assert lines[0] == promised[0]
    # another machine's rounding may turn a near-tie of a model pushed so far
    steered = [line.split(" -> ")[1] for line in lines[1:6]]
    plain = [line.split(" -> ")[0] for line in lines[1:6]]
    assert [p.strip() for p in plain] == [p.split(" -> ")[0].strip() for p in promised[1:6]]
    assert sum(bool(re.match(r"'\d+-", text)) for text in steered) >= 3
    assert lines[6] == promised[6]
    assert lines[7] == promised[7]
    with Client(service.url, "") as client:
        (vector,) = client.vectors(name="take-away")
        assert vector.model == "demo"
        assert len(client.vector(vector.id).vector) == vector.width == 96
        assert client.delete_vector(vector.id).deleted
        with pytest.raises(ApiError, match="no vector"):
            client.vector(vector.id)
