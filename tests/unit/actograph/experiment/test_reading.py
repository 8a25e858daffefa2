"""Experiment files: errors name the line, and the schema for editors agrees with the reader."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from actograph.cli.main import main
from actograph.experiment.reading import ExperimentInvalid, read
from actograph.experiment.spec import job_bodies, schema

SHIPPED = Path(__file__).resolve().parents[4] / "docs" / "reference" / "experiment.schema.json"


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ("name: career", "name: a b", 1, "name"),
        ("limit: 2", "limit: two", 9, "limit"),
        ("max_tokens: 64", "max_tokens: 0", 12, "max_tokens"),
        ("[0.0, 0.7]", "[-1]", 14, "temperature"),
        ("report:", "reports:", 16, "Extra inputs"),
        ("    limit: 2", "    limit: 2\n    limit: 3", 10, "there twice"),
        ("problems.jsonl", "absent.jsonl", 8, "no file 'absent.jsonl'"),
        ("threshold: 5", "threshold: -5", 19, "threshold"),
        ("of: [plain]", "of: [plan]", 19, "no job 'plan'"),
        ("jobs:", "jobs: [", 12, "expected"),
        ("compare, of: [plain]", "compare, of: []", 21, "a comparison takes two jobs"),
        ("label: job", "folds: 1", 20, "folds"),
        ("model:", "deploy: {box: night, url: 'http://x'}\nmodel:", 2, "not both"),
    ],
)
def test_errors_name_the_line(experiment: Path, old: str, new: str, line: int, says: str) -> None:
    experiment.write_text(experiment.read_text().replace(old, new, 1))
    with pytest.raises(ExperimentInvalid) as raised:
        read(experiment)
    assert f"career.yaml:{line}: " in raised.value.message
    assert says in raised.value.message


@pytest.mark.parametrize("text", ["", "- a\n", "name: [\n", "!!python/object:os.system {}\n"])
def test_files_that_are_no_experiment(experiment: Path, text: str) -> None:
    experiment.write_text(text)
    assert main(["run", str(experiment)]) == 1


def test_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path / "none.yaml")]) == 1
    assert "none.yaml" in capsys.readouterr().err


def test_jobs_of_a_sweep(experiment: Path) -> None:
    stage = read(experiment).evaluate
    assert stage is not None
    bodies = job_bodies(stage)
    assert bodies["long.temperature-0.7"]["sampling"] == {"max_tokens": 64, "temperature": 0.7}
    assert bodies["plain.temperature-0.0"]["sampling"] == {"temperature": 0.0}


def test_the_schema_accepts_what_the_reader_accepts(
    experiment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == schema() == json.loads(SHIPPED.read_text(encoding="utf-8"))
    value: dict[str, Any] = yaml.safe_load(experiment.read_text())
    validator = jsonschema_rs.Draft202012Validator(printed)
    assert validator.is_valid(value)
    value["evaluate"]["base"]["limit"] = "two"
    assert not validator.is_valid(value)
