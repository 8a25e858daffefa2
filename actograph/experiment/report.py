"""The report of an experiment: scores of all jobs, and comparisons of their conditions."""

import json
from typing import Any

from actograph.client import Client
from actograph.contract.specs import ANALYSIS_KINDS


def collect(client: Client, title: str, jobs: dict[str, str], stages: dict[str, Any]) -> dict[str, Any]:
    """Read results and comparisons of all jobs.

    Returns:
        title, stages (service, model identity) and jobs: name -> id, results, comparison.
    """
    found: dict[str, Any] = {}
    for name, job_id in jobs.items():
        job = client.jobs.get(job_id)
        entry: dict[str, Any] = {"id": job_id, "model": job.model, "kind": job.kind}
        if job.kind in ANALYSIS_KINDS:
            entry["results"] = client.jobs.results(job_id).model_dump(mode="json")
        if job.kind == "evaluation":
            results = client.jobs.results(job_id)
            entry["results"] = results.model_dump(mode="json")
            if len(results.conditions) > 1:
                entry["comparison"] = client.jobs.comparison(job_id).model_dump(mode="json")
        found[name] = entry
    kept = {name: stages[name] for name in ("deploy", "model") if name in stages}
    return {"title": title, "stages": kept, "jobs": found}


def as_json(made: dict[str, Any]) -> str:
    """The report for programs."""
    return json.dumps(made, indent=1, sort_keys=True) + "\n"


def as_markdown(made: dict[str, Any]) -> str:
    """The report for people: one table of scores, and one of differences between conditions."""
    lines = [f"# {made['title']}", ""]
    deploy = made["stages"].get("deploy", {})
    if deploy:
        lines += [f"Service {deploy['url']}, version {deploy['service']}.", ""]
    lines += [
        "| job | condition | metric | value | stderr | samples |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, job in made["jobs"].items():
        for condition, scores in job.get("results", {}).get("conditions", {}).items():
            for metric, value in scores["metrics"].items():
                error = (scores.get("stderr") or {}).get(metric)
                cells = (name, condition, metric, _number(value), _number(error), scores.get("samples", ""))
                lines.append("| " + " | ".join(map(str, cells)) + " |")
    compared = [(name, job["comparison"]) for name, job in made["jobs"].items() if "comparison" in job]
    for name, comparison in compared:
        lines += ["", f"## {name}: conditions against {comparison['baseline']}", ""]
        lines += ["```json", json.dumps(comparison["conditions"], indent=1), "```"]
    analyses = [(name, job["results"]["analysis"]) for name, job in made["jobs"].items() if _analysis(job)]
    for name, analysis in analyses:
        lines += ["", f"## {name}", "", "```json", json.dumps(analysis, indent=1), "```"]
    lines += ["", "| job | id |", "| --- | --- |"]
    lines += [f"| {name} | {job['id']} |" for name, job in made["jobs"].items()]
    return "\n".join(lines) + "\n"


def _analysis(job: dict[str, Any]) -> bool:
    return bool(job.get("results", {}).get("analysis"))


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.4f}"
