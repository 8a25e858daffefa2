"""The house: rooms, packages within rooms, no import circles, and what the API process must not load.

`docs/architecture.md` explains the rooms. A package of a room imports packages to its left alone; the files
that stand directly in a room are named in the same list.
"""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

REPO = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "transformers", "nnsight"}
FORBIDDEN = {
    "actograph": {"fastapi", "celery", "sqlalchemy", "api", "worker", "storage"} | HEAVY,
    "storage": {"fastapi", "api", "worker"} | HEAVY,
    "worker": {"fastapi", "starlette", "api"},
    "api": {"worker"} | HEAVY,
    "bench": set(),
    "tests": {"bench"},
}
#: what an extra of the client installs, and only its driver imports
OF_EXTRAS = {"actograph/drivers/lm_eval_model.py": {"transformers"}}
#: packages of a room from the bottom to the top
PACKAGES = {
    "storage": "tables index migrate artifacts accounts jobs samples broker files sessions queue submission "
    "results analyses upkeep backup",
    "worker": "engine text evals runners sample signals drain process analysis __main__",
    "worker.engine": "requests model locations edits tokens structure runs capture packed traced stream "
    "forwards engine",
    "api": "middleware errors browser auth served_models dependencies estimate check submit analyses openai "
    "reading background metrics routes pages app keys __main__",
}
MAX_LINES, MAX_FILES, MAX_FUNCTION_LINES = 400, 16, 60
#: most lines of Python in a room, without migrations; a change that needs more says why and raises it
MOST_LINES = {"actograph": 18_245, "api": 6_700, "storage": 11_250, "worker": 13_640, "tests": 38_170}


class Source(NamedTuple):
    imports: list[str]
    #: each with its lines
    functions: list[tuple[str, int]]
    lines: int


@cache
def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    found = {}
    for room in FORBIDDEN:
        for path in (REPO / room).rglob("*.py"):
            parts = path.relative_to(REPO).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def scan(path: Path) -> Source:
    """Everything that a file imports, at whatever depth; `from a import b` counts as `a.b` and as `a`."""
    text = path.read_text(encoding="utf-8")
    found, functions = [], []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((node.name, (node.end_lineno or node.lineno) - node.lineno + 1))
    return Source(found, functions, len(text.splitlines()))


def imported_roots(path: Path) -> set[str]:
    return {module.partition(".")[0] for module in scan(path).imports}


@cache
def graph() -> dict[str, set[str]]:
    """Imports between modules of ours, those inside functions and for type checkers included."""
    ours = modules()
    edges: dict[str, set[str]] = {}
    for name, path in ours.items():
        targets = {name if name in ours else name.rpartition(".")[0] for name in scan(path).imports}
        edges[name] = {target for target in targets if target in ours and target != name}
    return edges


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import one another."""
    try:
        list(TopologicalSorter(edges).static_order())
    except CycleError as error:
        return [error.args[1]]
    return []


def test_the_scan_sees_imports_at_every_depth(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text("import torch.nn\ndef f():\n    from worker.engine import model\n")
    assert imported_roots(source) == {"torch", "worker"}


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []


def test_no_file_of_a_room_imports_what_the_room_must_not(subtests: pytest.Subtests) -> None:
    for room, forbidden in FORBIDDEN.items():
        with subtests.test(room=room):
            files = list((REPO / room).rglob("*.py"))
            assert files
            offences = {
                name: sorted(found)
                for path in files
                if (
                    found := imported_roots(path)
                    & forbidden - OF_EXTRAS.get(name := str(path.relative_to(REPO)), set())
                )
            }
            assert offences == {}


def test_no_modules_import_one_another_in_a_circle() -> None:
    assert circles(graph()) == []


@pytest.mark.parametrize("room", PACKAGES)
def test_packages_import_only_packages_below_them(room: str) -> None:
    rank = {name: place for place, name in enumerate(PACKAGES[room].split())}

    def package(module: str) -> str | None:
        rest = module.removeprefix(f"{room}.")
        return rest.partition(".")[0] if rest != module else None

    offences = []
    for module, targets in graph().items():
        of = package(module)
        if of is None:
            continue
        assert of in rank, f"name {room}.{of} in PACKAGES"
        offences += [
            f"{module} -> {target}"
            for target in targets
            if (other := package(target)) is not None and other != of and rank[other] > rank[of]
        ]
    assert sorted(offences) == []


def test_the_client_needs_nothing_of_the_command_line() -> None:
    offences = [
        f"{module} -> {target}"
        for module, targets in graph().items()
        if module.startswith(("actograph.client", "actograph.contract"))
        for target in targets
        if target.startswith("actograph.cli.")
    ]
    assert offences == []


def test_files_packages_and_functions_are_small() -> None:
    large = []
    for name, path in modules().items():
        room = path.relative_to(REPO).parts[0]
        if room in ("tests", "bench") or "migrations" in name:
            continue
        source = scan(path)
        if source.lines > MAX_LINES:
            large.append(f"{name}: {source.lines} lines")
        large += [
            f"{name}.{function}: {lines} lines"
            for function, lines in source.functions
            if lines > MAX_FUNCTION_LINES
        ]
        if path.name == "__init__.py":
            files = len(list(path.parent.glob("*.py")))
            if files > MAX_FILES:
                large.append(f"{name}: {files} files")
    assert sorted(large) == []


def test_rooms_keep_to_their_lines() -> None:
    lines = dict.fromkeys(MOST_LINES, 0)
    for name, path in modules().items():
        room = name.partition(".")[0]
        if room in lines and "migrations" not in name:
            lines[room] += scan(path).lines
    print({room: f"{count} of {MOST_LINES[room]}" for room, count in lines.items()})  # noqa: T201
    assert {room: count for room, count in lines.items() if count > MOST_LINES[room]} == {}


def test_nnsight_is_used_by_the_engine_alone() -> None:
    users = {
        path.relative_to(REPO).parts[:2]
        for path in (REPO / "worker").rglob("*.py")
        if "nnsight" in imported_roots(path)
    }
    assert users == {("worker", "engine")}


def test_importing_it_loads_nothing_heavy() -> None:
    modules = ["actograph.client.client", "actograph.cli.main", "actograph.demo", "api.app"]
    modules += ["worker.process.celery_app", "worker.analysis.__main__"]
    heavy = sorted(HEAVY | {"datasets", "boto3", "botocore", "sklearn"})
    program = (
        "import sys, importlib\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        f"    print(*[(name, m) for m in {heavy!r} if m in sys.modules])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=REPO, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == ""
