"""Experiment files: the jobs that they describe, and what is said of a fault."""

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
import yaml

from actograph.contract.errors import InvalidRequest
from actograph.experiment.experiment import read, schema

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
    assert experiment.stages == ["model", "evaluate", "fetch"]
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
        ("{hooks: [middle]}", "{hook: [middle]}", 7, "capture.hook: unknown field (job "),
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
