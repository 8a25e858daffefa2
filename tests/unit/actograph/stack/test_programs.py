"""Programs of the service find its rooms, in a checkout and in the folder of the wheel."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from actograph.contract.errors import ServiceUnavailable
from actograph.stack import programs


def test_programs_and_their_children_find_the_rooms_of_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also beside a folder of the user's with the same name, and with a PYTHONPATH of the user's."""
    rooms, here, users = tmp_path / "_service", tmp_path / "here", tmp_path / "users"
    child = (
        'import subprocess, sys; print("room", flush=True); subprocess.run([sys.executable, "-m", "room.b"])'
    )
    for file, text in {
        rooms / "room" / "__init__.py": "",
        rooms / "room" / "a.py": child,
        rooms / "room" / "b.py": "import tool; print(tool.__file__)",
        here / "room" / "__init__.py": "raise SystemExit('of the working directory')",
        users / "tool.py": "",
        users / "room" / "__init__.py": "raise SystemExit('of the user')",
    }.items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.setattr(programs, "ROOMS", rooms)
    monkeypatch.setenv("PYTHONPATH", str(users))
    done = subprocess.run(
        programs.program("room.a"), env=programs.program_environment(A="b"), cwd=here, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["room", str(users / "tool.py")], done.stderr


def test_a_checkout_needs_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "mine")
    assert not programs.ROOMS.exists()
    assert programs.program_environment(A="b") == os.environ | {"A": "b", "PYTHONSAFEPATH": "1"}
    assert programs.program("storage.migrate", "--check") == [
        sys.executable, "-m", "storage.migrate", "--check",
    ]  # fmt: skip


def test_the_client_alone_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    programs.require_installed(programs.SERVER_PACKAGES)
    with pytest.raises(ServiceUnavailable, match=r"torch is missing.*pip install 'actograph\[service\]'"):
        programs.require_installed()
