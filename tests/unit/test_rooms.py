"""The house: rooms, packages within rooms, no import circles, and what the API process must not load.

`docs/architecture.md` explains the rooms. A package of a room imports packages to its left alone; the files
that stand directly in a room are named in the same list.
"""

import ast
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "transformers", "nnsight"}
FORBIDDEN = {
    "actograph": {"fastapi", "celery", "sqlalchemy", "api", "worker", "storage", "evals"} | HEAVY,
    "evals": {"fastapi", "celery", "sqlalchemy", "api", "worker", "storage"} | HEAVY,
    "storage": {"fastapi", "api", "worker"} | HEAVY,
    "worker": {"fastapi", "starlette", "api"},
    "api": {"worker"} | HEAVY,
    "bench": set(),
    "tests": {"bench"},
}
#: what an extra of the client installs, and only its driver or analysis imports, when it is used
OF_EXTRAS = {
    "actograph/drivers/lm_eval_model.py": {"transformers"},
    "actograph/analysis/checkpoint.py": {"torch", "transformers"},
}
#: packages of a room from the bottom to the top
PACKAGES = {
    "evals": "dataset_readers dataset_rows task_rows prompts calculator user_functions tools scoring "
    "statistics plans",
    "storage": "redaction tables index migrate artifacts accounts jobs samples broker files saes sessions "
    "queue submission results analyses upkeep index_backup backup",
    "worker": "text engine runners sample signals drain process analysis __main__",
    "worker.engine": "messages channel client model locations attention_masks attention_calls chosen_tokens "
    "edits variants prompt_values tokens structure capture edit_tables slot pass_hooks model_state packed "
    "traced stream pass_memory forwards engine repeatable loading ranks service estimate __main__",
    "api": "middleware errors browser auth served_models dependencies submission inputs session_queries "
    "checks kinds estimate submit openai reading background metrics routes pages app keys __main__",
}


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
def imports(path: Path) -> list[str]:
    """Everything that a file imports, at whatever depth; `from a import b` counts as `a.b` and as `a`."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def imported_roots(path: Path) -> set[str]:
    return {module.partition(".")[0] for module in imports(path)}


@cache
def graph() -> dict[str, set[str]]:
    """Imports between modules of ours, those inside functions and for type checkers included."""
    ours = modules()
    edges: dict[str, set[str]] = {}
    for name, path in ours.items():
        targets = {name if name in ours else name.rpartition(".")[0] for name in imports(path)}
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


def test_what_a_researcher_types_is_used_by_nothing_that_serves(subtests: pytest.Subtests) -> None:
    """The command line stands above the client, and both above the contract."""
    cases = {
        ("actograph.client", "actograph.contract"): ("actograph.cli",),
        ("actograph.contract",): ("actograph.client", "actograph.analysis"),
        ("api", "evals", "storage", "worker"): ("actograph.cli", "actograph.client"),
    }
    for users, unwanted in cases.items():
        with subtests.test(users=users):
            offences = [
                f"{module} -> {target}"
                for module, targets in graph().items()
                if module.startswith(tuple(f"{user}." for user in users))
                for target in targets
                if target in unwanted or target.startswith(tuple(f"{one}." for one in unwanted))
            ]
            assert offences == []


def test_a_class_name_has_one_meaning() -> None:
    """A private class counts too: whoever searches for a name finds one thing."""
    found: dict[str, list[str]] = {}
    for name, path in modules().items():
        if not name.startswith(("bench", "tests")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.ClassDef):
                    found.setdefault(node.name.lstrip("_"), []).append(f"{name}.{node.name}")
    assert [places for places in found.values() if len(places) > 1] == []


def test_nnsight_is_used_by_the_engine_alone() -> None:
    users = {
        path.relative_to(REPO).parts[:2]
        for path in (REPO / "worker").rglob("*.py")
        if "nnsight" in imported_roots(path)
    }
    assert users == {("worker", "engine")}


def test_a_host_knows_of_the_engine_only_what_crosses_between_them() -> None:
    """And files of weights, which it identifies without loading them."""
    known = {"messages", "client", "channel", "model.weight_files", "model"}
    offences = {
        f"{module} -> {target}"
        for module, targets in graph().items()
        for target in targets
        if module.startswith("worker.")
        and not module.startswith("worker.engine")
        and target.startswith("worker.engine.")
        and target.removeprefix("worker.engine.") not in known
    }
    # a lens runs a checkpoint's own end in a process of its own
    assert offences == set()


def test_upkeep_runs_in_no_other_process() -> None:
    """The API reads how old its last round is, and has the routes that clean up the store."""
    users = {name for name, used in graph().items() if {"storage.upkeep.reconcile"} & used}
    assert {name for name in users if name.startswith(("api", "worker"))} == {"api.metrics"}
    assert "Reconciler(" not in (REPO / "api/metrics.py").read_text()


#: rooms of what a researcher types; all their modules are imported, not only those that `--help` needs
_TYPED = ("actograph.client", "actograph.cli", "actograph.analysis", "actograph.contract")


def test_importing_it_loads_nothing_heavy(subtests: pytest.Subtests) -> None:
    heavy = HEAVY | {"datasets", "boto3", "botocore", "sklearn"}
    client = heavy | FORBIDDEN["actograph"] | {"jinja2"}
    typed = ", ".join(sorted(name for name in modules() if name.startswith(_TYPED)))
    # each process imports one after the other; what a later one may load, no earlier one may
    processes: list[dict[str, set[str]]] = [
        {typed: client - {"sklearn"}},  # a probe is fitted by scikit-learn
        {
            "actograph.client.client, actograph.cli.main": client,
            "actograph.demo": client,
            "storage.upkeep.__main__": heavy | {"fastapi", "celery"},
            "api.app": heavy,
            "worker.analysis.__main__": heavy,
            "worker.__main__": {"torch", "nnsight", "datasets"},
        },
    ]
    for cases in processes:
        assert all(later <= earlier for earlier, later in pairwise(cases.values()))
        program = "import sys\n"
        for module, forbidden in cases.items():
            program += f"import {module}\n"
            program += f"print(*[name for name in {sorted(forbidden)!r} if name in sys.modules])\n"
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, cwd=REPO, check=False
        )
        assert ended.returncode == 0, ended.stderr
        for module, loaded in zip(cases, ended.stdout.splitlines(), strict=True):
            with subtests.test(module=module):
                assert not loaded.strip()
