"""Experiment files: the jobs that they describe, and what is said of a fault."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from actograph.contract.errors import InvalidRequest
from actograph.experiment.experiment import MOST_NAME, Evaluate, read, schema

TEXT = """\
name: tools
model: {model_id: demo, savepoints: [{name: middle, selector: resid_post.2}]}
evaluate:
  base:
    dataset: problems.jsonl
    sampling: {max_tokens: 96}
    capture: {hooks: [middle]}
  jobs:
    plain:
    tools:
      tools: calculator
      sampling: {seed: 3}
  sweep:
    sampling.temperature: [0.0, 0.7]
fetch: {activations: sampled}
analyse:
  jobs:
    right: {kind: probe}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    (tmp_path / "problems.jsonl").write_text("{}")

    def make(text: str) -> Path:
        path = tmp_path / "tools.yaml"
        path.write_text(text)
        return path

    return make


def test_jobs_are_the_base_with_changes_once_for_every_value(write: Callable[[str], Path]) -> None:
    experiment = read(write(TEXT))
    assert experiment.stages == ["model", "evaluate", "analyse", "fetch"]
    assert list(experiment.bodies) == [
        f"{job}.temperature-{heat}" for job in ("plain", "tools") for heat in ("0_0", "0_7")
    ]
    body = experiment.bodies["tools.temperature-0_7"]
    assert body["tools"] == "calculator"
    assert body["sampling"] == {"max_tokens": 96, "seed": 3, "temperature": 0.7}
    assert body["tags"] == ["tools"]
    assert "tools" not in experiment.bodies["plain.temperature-0_7"]


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("name: tools", "nme: tools", 1, "nme"),
        ("max_tokens: 96", "max_tokens: 0", 6, "sampling.max_tokens"),
        ("{hooks: [middle]}", "{hook: [middle]}", 7, "capture.hook"),
        ("tools: calculator", "tools: two words", 11, "tools"),
        ("seed: 3", "sed: 3", 12, "sampling.sed"),
        ("[0.0, 0.7]", "[0.0, -1]", 14, "sampling.temperature"),
        ("[0.0, 0.7]", "[]", 13, "at least one value"),
        ("dataset: problems.jsonl", "dataset: lost.jsonl", 5, "lost.jsonl"),
        ("    plain:\n", "    plain:\n    plain:\n", 10, "plain is there twice"),
        ("fetch: {", "fetch: now: {", 15, "mapping"),
        ("sampling: {max_tokens: 96}", "sampling: 96", 3, "sampling.temperature cannot be set"),
        (
            "{hooks: [middle]}",
            "{hook: [middle]}",
            7,
            "capture.hook: unknown field. Did you mean 'hooks'?",
        ),
        ("[0.0, 0.7]", "[0.7, 0.7]", 3, "two jobs have the name plain.temperature-0_7"),
        ("    plain:\n", "    plain: {model: a}\n", 18, "reads jobs of different models"),
        ("    tools:\n", "    right:\n", 17, "right is the name of a job too"),
    ],
)
def test_a_fault_is_told_with_its_line(
    write: Callable[[str], Path], old: str, new: str, line: int, said: str
) -> None:
    path = write(TEXT.replace(old, new, 1))
    with pytest.raises(InvalidRequest) as raised:
        read(path)
    assert raised.value.message.startswith(f"{path}:{line}: ")
    assert said in raised.value.message


def test_the_schema_for_editors_takes_what_is_read_and_refuses_what_is_not() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(json.dumps(schema())))
    assert not list(validator.iter_errors(yaml.safe_load(TEXT)))
    assert list(validator.iter_errors(yaml.safe_load(TEXT.replace("max_tokens: 96", "max_tokens: many"))))
    assert list(validator.iter_errors(yaml.safe_load(TEXT.replace("capture:", "captur:"))))


def variants(**sweep: list[Any]) -> list[str]:
    return list(Evaluate(sweep=sweep).variants()["main"])


def test_different_values_of_a_sweep_are_different_jobs(subtests: pytest.Subtests) -> None:
    edit = {"hook": "resid_post.1", "op": "scale", "positions": "generated"}
    for values in [
        [[edit | {"coefficient": number}] for number in (2.0, 4.0, 8.0)],
        ["a b", "a_b", "a-b", "a  b", "a/b"],
        [0.7, "0.7", "0_7", "07"],
        [1, 1.0, "1", True, "true", None, "null", [1], ["1"]],
        ["x" * 40, "x" * 41, "x" * 42],
        [-1, "-1", "_1", 1e16, 1e-16],
        ["A", "a"],
    ]:
        with subtests.test(values=values):
            names = variants(field=values)
            assert len(set(names)) == len(values) == len(names)
            assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in names)
    # values that people sweep have plain names, whatever stands beside them
    assert variants(**{"sampling.top_p": [0.5, 0.7]}) == [
        "main.top_p-0_5",
        "main.top_p-0_7",
    ]
    assert variants(tools=["calculator", "none"]) == ["main.tools-calculator", "main.tools-none"]
    assert variants(seed=["a b"]) == variants(seed=["a b", "a_b"])[:1]


def test_long_names_end_in_a_digest() -> None:
    fields = {f"field_{place}": ["y" * 39 + letter for letter in "ab"] for place in range(8)}
    names = variants(**fields)
    assert len(set(names)) == 256
    assert max(map(len, names)) <= MOST_NAME


def test_a_name_of_an_analysis_is_a_job_or_all_values_of_its_sweep(write: Callable[[str], Path]) -> None:
    text = TEXT.replace("plain:\n", "gemma-2:\n").replace("tools:\n", "gemma-2.1:\n", 1)
    assert "gemma-2.1:\n" in text
    for wanted, expected in [
        ("gemma-2", ["gemma-2.temperature-0_0", "gemma-2.temperature-0_7"]),
        ("gemma-2.1", ["gemma-2.1.temperature-0_0", "gemma-2.1.temperature-0_7"]),
        ("gemma-2.1.temperature-0_7", ["gemma-2.1.temperature-0_7"]),
    ]:
        chosen = f"{{kind: probe, sessions: {{jobs: [{wanted}]}}}}"
        experiment = read(write(text.replace("{kind: probe}", chosen)))
        assert experiment.analyses["right"]["sessions"]["jobs"] == expected
    with pytest.raises(InvalidRequest, match="there is no job 'gemma'"):
        read(write(text.replace("{kind: probe}", "{kind: probe, sessions: {jobs: [gemma]}}")))
