"""The tables in docs/reference/architectures.md say what the structures of this suite say.

`WRITE_HOOK_TABLE=1 .venv/bin/pytest <this file>` writes them anew.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from actograph.contract import hooks as grammar
from actograph.contract.models import ModelStructure
from tests.support.architectures import ARCHITECTURES
from worker.engine.engine import Engine

pytestmark = pytest.mark.integration

PAGE = Path(__file__).resolve().parents[5] / "docs" / "reference" / "architectures.md"
ROUTER = ("router_logits", "expert_indices", "expert_weights")
DENSE = [p for p in grammar.POINTS if p not in ROUTER]
LAYER = 1  # one that has every point in every architecture but those whose second layer is dense


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def named(titles: Sequence[str], structures: Mapping[str, ModelStructure]) -> str:
    """The architectures, or those that are not meant where they are few."""
    others = [title for title in structures if title not in titles]
    if not others:
        return "all"
    return f"all but {', '.join(others)}" if len(others) <= len(structures) // 3 else ", ".join(titles)


def layers_of(structure: ModelStructure, point: str) -> list[int]:
    return [i for i in range(structure.num_layers) if f"{point}.{i}" in structure.hooks]


def availability(structure: ModelStructure, point: str) -> str:
    if point in grammar.MODEL_POINTS:
        return "yes" if point in structure.hooks else "-"
    have = len(layers_of(structure, point))
    return "yes" if have == structure.num_layers else "routed layers" if have else "-"


def points_table(structures: Mapping[str, ModelStructure]) -> str:
    """Architectures x points."""
    columns = [*DENSE, *ROUTER]
    rows = [
        [title, *(availability(structure, point) for point in columns)]
        for title, structure in structures.items()
    ]
    return table(["architecture", *(f"`{c}`" for c in columns)], rows)


def refusals_table(structures: Mapping[str, ModelStructure]) -> str:
    """Points that are refused, and what the refusal says."""
    found: dict[tuple[str, str], list[str]] = {}
    for title, structure in structures.items():
        for hook, reason in structure.unavailable.items():
            found.setdefault((grammar.point_of(hook), reason), []).append(title)
    by_reason: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (point, reason), titles in found.items():
        by_reason.setdefault((reason, tuple(titles)), []).append(f"`{point}`")
    rows = [[", ".join(points), named(t, structures), reason] for (reason, t), points in by_reason.items()]
    return table(["point", "architecture", "reason"], sorted(rows))


def locations_table(structures: Mapping[str, ModelStructure]) -> str:
    """Where each point is, as `model.layers.<i>` paths; architectures that agree share a line."""
    rows = []
    for point in [*DENSE, *ROUTER]:
        where: dict[str, list[str]] = {}
        for title, structure in structures.items():
            have = layers_of(structure, point) or [LAYER]
            hook = point if point in grammar.MODEL_POINTS else f"{point}.{have[-1]}"
            if hook in structure.hooks:
                location = re.sub(r"\.\d+\.", ".{i}.", structure.hooks[hook].location, count=1)
                where.setdefault(location, []).append(title)
        rows += [
            [f"`{point}`", f"`{location}`", named(titles, structures)]
            for location, titles in sorted(where.items(), key=lambda item: -len(item[1]))
        ]
    return table(["point", "location", "architectures"], rows)


def proofs_table(structures: Mapping[str, ModelStructure]) -> str:
    """Identity -> the architectures that it was proved for."""
    proved: dict[str, list[str]] = {}
    for title, structure in structures.items():
        for proof in structure.proofs:
            proved.setdefault(proof.rpartition(" (")[0], []).append(title)
    rows = [
        [f"`{identity}`" if "==" in identity else identity, named(titles, structures)]
        for identity, titles in proved.items()
    ]
    return table(["identity", "architectures"], rows)


def aliases_table() -> str:
    """Every alias that the grammar knows."""
    rows = []
    for point in grammar.POINTS:
        hook = point if point in grammar.MODEL_POINTS else f"{point}.8"
        families: dict[str, list[str]] = {"lens": [], "nnterp": [], "flat": []}
        for alias in grammar.aliases(hook):
            family = "flat" if alias.startswith("layer_") else "lens"
            if alias.startswith(("layers_", "attentions_", "mlps_", "token_")):
                family = "nnterp"
            families[family].append(f"`{alias}`")
        if any(families.values()):
            rows.append([f"`{hook}`", *(", ".join(names) or "-" for names in families.values())])
    return table(["hook", "TransformerLens", "nnterp", "flat"], rows)


@pytest.mark.soak
def test_the_page_says_what_was_found(engine_of: Callable[[str], Engine]) -> None:
    structures = {known.title: engine_of(key).structure for key, known in ARCHITECTURES.items()}
    due = {
        "points": points_table(structures),
        "locations": locations_table(structures),
        "proofs": proofs_table(structures),
        "refusals": refusals_table(structures),
        "aliases": aliases_table(),
    }
    page = PAGE.read_text(encoding="utf-8")
    for name, text in due.items():
        start, end = f"<!-- table: {name} -->\n", "\n<!-- end -->"
        assert page.count(start) == 1, f"{PAGE.name} has no place for the table of {name}"
        before, _, rest = page.partition(start)
        page = f"{before}{start}{text}{end}{rest.partition(end.strip())[2]}"
    if os.environ.get("WRITE_HOOK_TABLE"):
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page, "out of date: run with WRITE_HOOK_TABLE=1"
