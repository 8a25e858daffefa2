"""The rooms keep apart: who may import whom, and what the API process must not load."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "transformers", "nnsight"}
FORBIDDEN = {
    "actograph": {"fastapi", "celery", "sqlalchemy", "api", "worker", "storage"} | HEAVY,
    "storage": {"fastapi", "api", "worker"} | HEAVY,
    "worker": {"fastapi", "starlette", "api"},
    "api": {"worker"} | HEAVY,
}


def imported_roots(path: Path) -> set[str]:
    roots = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            roots.add(node.module.partition(".")[0])
    return roots


def test_the_scan_sees_imports_at_every_depth(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text("import torch.nn\ndef f():\n    from worker.engine import model\n")
    assert imported_roots(source) == {"torch", "worker"}


@pytest.mark.parametrize("room", FORBIDDEN)
def test_no_file_of_a_room_imports_what_the_room_must_not(room: str) -> None:
    files = list((REPO / room).rglob("*.py"))
    assert files
    offences = {
        str(path.relative_to(REPO)): sorted(found)
        for path in files
        if (found := imported_roots(path) & FORBIDDEN[room])
    }
    assert offences == {}


def test_nnsight_is_used_by_the_engine_alone() -> None:
    users = {
        path.relative_to(REPO).parts[:2]
        for path in (REPO / "worker").rglob("*.py")
        if "nnsight" in imported_roots(path)
    }
    assert users == {("worker", "engine")}


@pytest.mark.parametrize(
    "module",
    ["api.app", "actograph.cli.main", "actograph.client.http", "worker.process.celery_app", "actograph.demo"],
)
def test_importing_it_loads_neither_torch_nor_transformers(module: str) -> None:
    heavy = sorted(HEAVY | {"datasets"})
    program = (
        f"import sys, importlib; importlib.import_module({module!r}); "
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=REPO, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == "[]"
