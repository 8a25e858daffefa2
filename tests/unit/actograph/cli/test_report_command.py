"""`actograph report`: one file that loads nothing, and its figures."""

import json
import re
import xml.etree.ElementTree
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.analysis.reports import figures
from actograph.analysis.reports.job_report import JobParts, build
from actograph.cli.main import main
from actograph.contract import resources
from actograph.contract.comparison import (
    ConditionComparison,
    JobComparison,
    MetricDifference,
    PairedDifference,
)
from actograph.contract.errors import InvalidDataset

pytest.importorskip("matplotlib")


class Attributes(HTMLParser):
    """Addresses that a page names, and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in {"script", "link", "iframe", "object"}
        self.addresses += [value or "" for name, value in attrs if name in {"src", "href", "srcset"}]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def job(service: Any, monkeypatch: pytest.MonkeyPatch) -> resources.Job:
    monkeypatch.setenv("ACTOGRAPH_URL", service.url)
    job: resources.Job = service.add_job(1, identity_sha256="ab" * 32, spec={"task": "<gsm8k> & co"})
    metrics = {"exact_match,numeric": 0.5, "exact_match_stderr,numeric": 0.05}
    service.results[job.id] = resources.JobResults(
        job_id=job.id, status=resources.JobStatus.COMPLETED, task="gsm8k", progress=job.progress,
        conditions={
            name: resources.ConditionResults(alias=name, metrics=metrics, samples=9, failed=0, truncated=1)
            for name in ("plain", "kind")
        },
    )  # fmt: skip
    service.samples[job.id] = [
        resources.Sample(
            id=f"smp_{number:032x}", job_id=job.id, index=number, input={}, generated_tokens=10 + number,
            condition="plain", status=resources.SampleStatus.COMPLETED,
        )
        for number in range(9)
    ]  # fmt: skip
    metric = MetricDifference(pairs=9, baseline=0.5, condition=0.75, difference=0.25, low=0.1, high=0.4)
    nothing = PairedDifference(pairs=0)
    service.comparison = JobComparison(
        job_id=job.id, status=resources.JobStatus.COMPLETED, baseline="plain", level=0.95, resamples=9,
        conditions={
            "kind": ConditionComparison(
                unpaired=0, metrics={"exact_match,numeric": metric}, prompt_tokens=nothing,
                generated_tokens=nothing,
            )
        },
    )  # fmt: skip
    return job


def probed(folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Output of `actograph probe` on two hooks."""
    generator = np.random.default_rng(0)
    arrays: dict[str, Any] = {f"features.mlp_in.{one}": generator.normal(size=(60, 3)) for one in range(2)}
    np.savez(folder / "rows.npz", labels=np.arange(60) % 2, **arrays)
    assert main(["probe", str(folder / "rows.npz"), "--resamples", "10", "--shuffles", "1"]) == 0
    path = folder / "scores.json"
    path.write_text(capsys.readouterr().out)
    return path


def test_a_report_stands_alone(
    job: resources.Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scores, outliers, out = probed(tmp_path, capsys), tmp_path / "outliers.json", tmp_path / "night.html"
    outliers.write_text(json.dumps({"outlier_features": [{"feature": 7, "layers": [1, 2]}]}))
    given = ["--analysis", str(scores), "--analysis", str(outliers), "--out", str(out)]
    assert main(["report", job.id, *given]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    text = out.read_text()
    page = Attributes()
    page.feed(text)
    assert page.addresses
    assert all(one.startswith("data:image/svg+xml;base64,") for one in page.addresses)
    assert "url(" not in text
    assert "@import" not in text
    for expected in ("ab" * 32, "<gsm8k> & co", "actograph report", "0.1 to 0.4", "mlp_in.1", "1, 2"):
        assert expected in page.text, expected
    drawn = sorted(path.name for path in (tmp_path / "night-figures").iterdir())
    assert len(drawn) == 8
    for path in (tmp_path / "night-figures").iterdir():
        if path.suffix == ".png":
            assert path.read_bytes().startswith(b"\x89PNG")
        else:
            xml.etree.ElementTree.fromstring(path.read_bytes())
    xml.etree.ElementTree.fromstring(b64decode(page.addresses[0].partition(",")[2]))


def test_unknown_analyses_are_refused(
    job: resources.Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.json"
    for text, message in (("{", "not JSON"), ("[]", "not a JSON object")):
        path.write_text(text)
        assert main(["report", job.id, "--analysis", str(path)]) == 1
        assert message in capsys.readouterr().err
    forms: list[dict[str, Any]] = [
        {},
        {"hooks": {}},
        {"hooks": {"a": {"auroc": 1}}},
        {"outlier_features": [{}]},
    ]
    for form in forms:
        with pytest.raises(InvalidDataset, match="analysis 1"):
            build([], [form], "")


def test_results_of_analysis_jobs_are_sections(job: resources.Job) -> None:
    def sections(analysis: dict[str, Any]) -> str:
        results = resources.JobResults(
            job_id=job.id, status=job.status, progress=job.progress, conditions={}, analysis=analysis
        )
        return build([JobParts(job, results)], [], "command").html

    features = [{"feature": 9, "layers": [0, 2]}, {"feature": 9, "layers": [1]}]
    assert "<td>0, 1, 2</td>" in sections({"kind": "outliers", "jobs": [{"outlier_features": features}]})
    probed = {"auroc": 0.75, "auroc_interval": [0.5, 1], "accuracy": 0.5, "accuracy_interval": [0.25, 0.75]}
    hooks = {"mlp_in.7": probed | {"baselines": {"majority": probed}}}
    assert "<td>0.25 to 0.75</td>" in sections({"kind": "probe", "hooks": hooks})


def test_a_lens_is_a_section_whose_names_are_escaped() -> None:
    hostile = "</table><script src=https://example.org/x.js>$x^$"
    numbers = {"rows": 9, "next_rows": 8, "next_log_probability": -1.5, "next_is_top": 0.25, "agreement": 1.0}
    components = {hostile: {"mean": 0.125, "mean_magnitude": 0.5}}
    found = {
        "job_id": hostile,
        "hooks": {"resid_post.0": numbers, hostile: numbers | {"next_is_top": None}},
        "attribution": {"token": "next", "components": components},
    }
    report = build([], [found], hostile)
    page = Attributes()  # fails at a script
    page.feed(report.html)
    assert [figure.name for figure in report.figures] == ["lens-1"]
    assert all(one.startswith("data:image/svg+xml;base64,") for one in page.addresses)
    assert page.text.count(hostile) == 4
    for expected in ("-1.5", "0.25", "Contributions to the logit of token next", "0.125"):
        assert expected in page.text, expected


def test_comparisons_are_tables() -> None:
    names = ("pairs", "first_norm", "second_norm", "difference_norm", "mean_cosine", "cka", "effect_size")
    built = build([], [{"hooks": {"mlp_in.3": dict.fromkeys(names, 1.5) | {"p_value": 0.25}}}], "command")
    assert "<td>mlp_in.3</td>" in built.html
    assert "<td>0.25</td>" in built.html
    assert not built.figures


def test_the_same_figure_has_the_same_bytes_and_colours_that_differ() -> None:
    def draw() -> figures.Figure:
        return figures.bars("a", "A", {"s": [figures.Bar("x", 1.0, 0.5, 1.25)], "t": [figures.Bar("x", 2.0)]})

    first = draw()
    assert first.svg == draw().svg
    assert {colour.lower() for colour in figures.COLOURS[:2]} <= set(
        re.findall(r"#[0-9a-f]{6}", first.svg.decode())
    )
