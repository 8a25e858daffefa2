"""A drained evaluation as a results folder, opened by lm-eval and by inspect_ai themselves."""

import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from actograph.contract.resources import JobStatus
from storage.results.export import folder, plan
from storage.tables.models import SampleRow
from tests.support.additions import additions

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

Ask = Callable[..., list[dict[str, Any]]]

PROBLEMS = additions((12, 30), (45, 11), (70, 25))
#: the bare question, as the model was trained on it
TASK = {"name": "additions", "prompt": "{{question}}", "scorers": ["numeric", "exact", "includes"]}
TWO_WAYS = [{"name": "plain"}, {"name": "calculator", "tools": "calculator"}]
#: what the tracker itself adds to the results
OF_TRACKER = (
    "task_hashes", "model_source", "model_name", "model_name_sanitized", "system_instruction",
    "system_instruction_sha", "fewshot_as_multiturn", "chat_template", "chat_template_sha",
    "total_evaluation_time_seconds",
)  # fmt: skip


def exported(
    bench: "Bench", into: Path, *, fail_last: bool = False, **spec: Any
) -> tuple[Path, dict[str, Any]]:
    """Drain a job and unpack its export: the folder, and the results as the API has them."""
    job_id = bench.submit(PROBLEMS, **spec)
    bench.drain().look()
    if fail_last:
        with bench.database.write() as session:
            last = session.get_one(SampleRow, bench.samples(job_id)[-1].id)
            last.status, last.error = "failed", {"type": "sample_timeout", "message": "too slow"}
            last.prompt = last.completion = last.scores = last.finish_reason = None
    assert bench.status(job_id) is JobStatus.COMPLETED
    wanted = plan.prepare(bench.database, job_id, "meta")
    data = b"".join(folder.stream(wanted, bench.database, bench.store))
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        tar.extractall(into, filter="data")
    return into / job_id, wanted.results.model_dump(mode="json")["conditions"]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_with_the_tracker(lm_eval: Ask, where: Path, metrics: dict[str, float | None]) -> None:
    """lm-eval writes the same two files of the same results and samples, to the byte."""
    (results_path,) = where.glob("results_*.json")
    (samples_path,) = where.glob("samples_*.jsonl")
    ours = json.loads(results_path.read_text())
    (task,) = ours["results"]
    samples = lines(samples_path)
    as_run = [
        line | {"arguments": [list(given.values()) for given in line["arguments"].values()]}
        for line in samples
    ]
    tracked, loaded = lm_eval(
        {
            "op": "tracked",
            "results": {key: value for key, value in ours.items() if key not in OF_TRACKER},
            "samples": {task: as_run},
            "model_source": ours["model_source"],
            "model": ours["model_name"],
            "system": ours["system_instruction"],
            "multiturn": ours["fewshot_as_multiturn"],
        },
        {"op": "loaded", "path": str(samples_path)},
    )
    assert {re.sub(r"\d{4}-.*\d(?=\.json)", "", name) for name in tracked} == {
        f"{where.name}/results_.json", f"{where.name}/samples_{task}_.jsonl",
    }  # fmt: skip
    theirs = {Path(name).suffix: text for name, text in tracked.items()}
    assert theirs[".jsonl"] == samples_path.read_text()
    written = json.loads(theirs[".json"])
    assert list(written) == list(ours)
    # the tracker's own clock, and the template, which it was not given
    apart = ("total_evaluation_time_seconds", "chat_template_sha")
    assert float(ours[apart[0]]) >= 0
    assert {**written, **dict.fromkeys(apart)} == {**ours, **dict.fromkeys(apart)}

    assert loaded["rows"] == len(samples)
    assert {"doc_id", "doc", "target", "arguments", "resps", "filtered_resps"} <= set(loaded["columns"])
    assert loaded["task"] == task
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d{6}", loaded["date"])
    found = ours["results"][task]
    for key, value in metrics.items():
        assert found[key] == ("N/A" if value is None else value)
        metric, _, of_filter = key.partition(",")
        values = [line[metric] for line in samples if line["filter"] == of_filter and metric in line]
        if values:
            assert found[key] == pytest.approx(sum(values) / len(values))


def test_inspect_analyses_and_scores_a_log(bench: "Bench", inspect: Ask, tmp_path: Path) -> None:
    where, _ = exported(
        bench, tmp_path, fail_last=True, task=TASK, conditions=TWO_WAYS[1:], sampling={"max_tokens": 64}
    )  # fmt: skip
    (log,) = (where / "inspect").glob("*.eval")
    (found,) = inspect({"op": "frames", "log": str(log)})
    sample = json.loads((where / "samples" / "additions_0001.json").read_text())
    turns = lines(where / "trajectories" / "additions_0001.jsonl")
    messages = [one for one in found["messages"] if one["sample_id"] == sample["id"]]
    assert [one["role"] for one in messages] == ["user", "assistant", "tool", "assistant"]
    assert [turn["role"] for turn in turns] == ["prompt", "assistant", "tool", "assistant"]
    assert (messages[0]["content"], messages[2]["content"]) == (sample["prompt"], "42")
    assert messages[3]["content"] == turns[3]["content"]
    events = [one["event"] for one in found["events"] if one["sample_id"] == sample["id"]]
    assert events == ["sample_init", "model", "tool", "model", "score", "score", "score"]
    assert found["events"][-1]["event"] == "error"
    assert found["scored"] == ["exact_match", "includes", "match", "numeric"]


def test_lm_eval_and_inspect_open_several_epochs_of_gsm8k(
    bench: "Bench", lm_eval: Ask, inspect: Ask, tmp_path: Path
) -> None:
    where, results = exported(
        bench,
        tmp_path,
        fail_last=True,
        epochs=2,
        sampling={"max_tokens": 8, "temperature": 0.9, "stop": ["END"]},
    )
    metrics = results["baseline"]["metrics"]
    assert "pass@2,strict-match" in metrics
    check_with_the_tracker(lm_eval, where / "lm_eval" / "tiny-qwen3", metrics)
    (samples_path,) = (where / "lm_eval" / "tiny-qwen3").glob("samples_gsm8k_*.jsonl")
    first = lines(samples_path)[0]
    assert first["filter"] == "strict-match"
    assert [len(line["resps"][0]) for line in lines(samples_path)[:3]] == [2, 2, 1]
    assert [len(repeats) for repeats in first["resps"]] == [2]
    assert [len(repeats) for repeats in first["filtered_resps"]] == [2]
    assert [line["filter"] for line in lines(samples_path)] == [
        name for name in ("strict-match", "flexible-extract", "numeric") for _ in PROBLEMS
    ]
    assert first["arguments"]["gen_args_0"]["arg_1"] == {
        "until": ["END", "Question:", "</s>", "<|im_end|>"],
        "do_sample": True,
        "temperature": 0.9,
        "max_gen_toks": 8,
        "top_p": 1.0,
    }

    (opened,) = inspect({"op": "read", "logs": str(where / "inspect")})
    (log,) = opened["logs"]
    assert (log["task"], log["epochs"]) == ("gsm8k", 2)
    assert sorted(one[:2] for one in log["summaries"]) == [[n, e] for n in (1, 2, 3) for e in (1, 2)]
    assert (log["results"]["total_samples"], log["results"]["completed_samples"]) == (6, 5)
    (failed,) = (sample for sample in log["samples"] if "error" in sample)
    assert (failed["id"], failed["epoch"], failed["error"]["message"]) == (3, 2, "too slow")
    scores = {score["name"]: score["metrics"] for score in log["results"]["scores"]}
    assert scores["strict-match"]["pass@2"]["value"] == metrics["pass@2,strict-match"]
    assert scores["strict-match"]["mean"]["value"] == metrics["exact_match,strict-match"]
