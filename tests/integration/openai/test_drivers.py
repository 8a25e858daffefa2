"""Inspect and lm-eval as drivers: sessions of every generation, equal scores, and scores as labels."""

import json
import os
import random
import re
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from actograph.client import Client
from actograph.client.matrix import Matrix
from actograph.drivers.options import problem_index
from api.openai.batches import advance_all
from tests.integration.openai.conftest import Service
from tests.integration.openai.test_lm_eval_service import MAX_TOKENS, QUESTIONS, _questions

Ask = Callable[..., list[dict[str, Any]]]
LAYERS = ["resid_post.0", "resid_post.1"]
TASK = Path(__file__).parents[1] / "inspect_task.py"


@pytest.fixture
def ours(service: Service) -> Iterator[Client]:
    """A client of a service whose batches move on at once."""
    over = threading.Event()

    def advance() -> None:
        while not over.wait(0.02):
            advance_all(service.app.state.services)

    thread = threading.Thread(target=advance)
    thread.start()
    with Client(service.url, "") as client:
        yield client
    over.set()
    thread.join()


def probe_score(matrix: Matrix) -> float:
    """Share of its training rows that a probe gets right."""
    assert set(matrix.labels) == {0.0, 1.0}
    probe = LogisticRegression(C=1e6, max_iter=10_000).fit(matrix.features, matrix.labels)
    return float(probe.score(matrix.features, matrix.labels))


def test_inspect_with_tools(
    service: Service, ours: Client, inspect: Ask, says: Callable[[str], None], tmp_path: Path
) -> None:
    call = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12+31"}}\n</tool_call>'
    eos = service.engine.model.tokenizer.decode(list(service.engine.model.eos_token_ids))
    says(f"{call}{eos}#### 43")  # in turns, since one generation runs at a time
    task = {"op": "evaluate", "task": os.path.relpath(TASK)}
    own = task | {
        "model": "actograph/tiny-qwen3", "base_url": service.url, "logs": str(tmp_path / "own"),
        "model_args": {"capture": "resid_post@all"},
    }  # fmt: skip
    plain = task | {
        "model": "openai/tiny-qwen3", "base_url": f"{service.url}/v1", "logs": str(tmp_path / "plain"),
        "model_args": {"responses_api": False},
    }  # fmt: skip
    logs = [log for answer in inspect(own, plain) for log in answer["logs"]]
    assert [log["status"] for log in logs] == ["success"] * 2
    ours_by, theirs_by = (
        {(s["id"], s["epoch"]): s["scores"]["match"]["value"] for s in log["samples"]} for log in logs
    )
    assert ours_by == theirs_by
    run = f"run={logs[0]['run_id']}"
    sessions = {one.id: one for one in ours.sessions.list(tag=run)}
    for sample in logs[0]["samples"]:
        outputs = [event["output"] for event in sample["events"] if event["event"] == "model"]
        own_sessions = [
            sessions.pop(one) for output in outputs for one in output["metadata"]["actograph_session_ids"]
        ]
        assert len(own_sessions) == len(outputs), "each generation has its session"
        assert len(outputs) == 2, "a call, and an answer after its result"
        is_right = sample["scores"]["match"]["value"] == "C"
        for number, session in enumerate(own_sessions, start=1):
            assert session.condition == f"generation-{number}"
            assert session.sample_index == problem_index(logs[0]["task"], sample["id"])
            assert session.epoch == sample["epoch"] - 1
            assert sorted(session.hooks) == LAYERS
            assert session.correct is is_right
            assert session.scores["match"].value == float(is_right)
            assert ours.jobs.get(session.job_id).metadata["sample"] == sample["id"]
    assert sessions == {}, "no session is of nobody"
    matrix = ours.matrix("resid_post.1", tag=run, label="match", condition="generation-1")
    assert len(matrix) == len(logs[0]["samples"])
    assert probe_score(matrix) > 0.9


def test_multiple_choice_of_lm_eval(
    service: Service, ours: Client, lm_eval: Ask, shared: Path, tmp_path: Path
) -> None:
    questions = list(_questions(service, shared))
    for question in questions[::2]:  # what the model itself would say is right here
        question["answer"] = 3
    rows = tmp_path / "choices.jsonl"
    rows.write_text("".join(json.dumps(question) + "\n" for question in questions))
    model = str(shared / "models/tiny-qwen3")
    task = {"op": "likelihoods", "task": str(Path(__file__).with_name("choices.yaml")), "rows": str(rows)}
    options = {
        "model": "tiny-qwen3", "base_url": service.url, "capture": "resid_post@all", "run": "night",
        "tokenizer": model,
    }  # fmt: skip
    driven, reference = lm_eval(
        task | {"backend": "actograph", "model_args": options}, task | {"model": model, "batch_size": 4}
    )
    assert driven["metrics"] == pytest.approx(reference["metrics"]) and driven["metrics"]
    flat, wanted = ([one for sample in x["samples"] for one in sample] for x in (driven, reference))
    assert [of for of, _ in flat] == pytest.approx([of for of, _ in wanted], abs=1e-3)
    assert [greedy for _, greedy in flat] == [greedy for _, greedy in wanted] and len(flat) == 4 * QUESTIONS

    sessions = list(ours.sessions.list(tag="night"))
    places = {(one.sample_index, one.condition) for one in sessions}
    assert places == {(row, f"choice-{choice}") for row in range(QUESTIONS) for choice in range(4)}
    assert len(sessions) == 4 * QUESTIONS
    assert all(sorted(one.hooks) == LAYERS and one.generated_tokens == 0 for one in sessions)
    (job,) = ours.jobs.list(tag="night")
    assert job.metadata == {"driver": "lm-eval", "task": "choices", "run": "night"}
    (results,) = job.results().conditions.values()
    assert results.metrics["acc,none"] == pytest.approx(driven["metrics"]["acc,none"])
    matrix = ours.matrix("resid_post.1", tag="night", label="acc,none")
    assert matrix.labels.mean() == pytest.approx(driven["metrics"]["acc,none"])
    assert np.array_equal(matrix.labels, job.matrix("resid_post.1").labels), "correct is the first metric"
    assert probe_score(matrix) > 0.9


def test_windows_of_long_texts_are_those_of_hf(
    service: Service, ours: Client, lm_eval: Ask, shared: Path
) -> None:
    lines = (shared / "data/gsm8k/test.jsonl").read_text().splitlines()[:2]
    texts = [json.loads(line)["question"] for line in lines]
    texts.append(" ".join(texts) * 12)  # longer than the model's context
    model = str(shared / "models/tiny-qwen3")
    task = {"op": "windows", "texts": texts, "pairs": [[texts[0], f" {texts[1][:20]}"], ["", texts[1][:16]]]}
    assert len(service.ids(texts[-1])) > service.engine.structure.context_length + 1
    task["pairs"].append([texts[-1], " 7"])
    for most in (24, None):
        options = {"model": "tiny-qwen3", "base_url": service.url, "tokenizer": model}
        options |= {} if most is None else {"max_length": most}
        asked = task if most is None else task | {"texts": texts[:2]}
        driven, wanted = lm_eval(
            asked | {"backend": "actograph", "model_args": options},
            asked | {"model": model, "max_length": most},
        )
        assert driven["texts"] == pytest.approx(wanted["texts"], rel=1e-5, abs=1e-3)
        assert [of for of, _ in driven["pairs"]] == pytest.approx([of for of, _ in wanted["pairs"]], abs=1e-3)
        assert [best for _, best in driven["pairs"]] == [best for _, best in wanted["pairs"]]


def test_generation_of_lm_eval(
    service: Service, ours: Client, lm_eval: Ask, shared: Path, tmp_path: Path
) -> None:
    chance = random.Random(3)
    rows = []
    for number in range(8):
        a, b = chance.randint(10, 99), chance.randint(10, 99)
        question = f"Anna buys {a} stamps and then buys {b} more. How many stamps did Anna buy?"
        asked = [{"role": "user", "content": f"Question: {question}\nAnswer:"}]
        said = ours.chat(asked, temperature=0, max_tokens=MAX_TOKENS).choices[0].message.content
        right = re.findall(r"\d+", said or "")[-1] if number % 2 else "-1"  # in every other row what it says
        rows.append(json.dumps({"question": question, "answer": f"#### {right}"}))
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("\n".join(rows) + "\n")
    model = str(shared / "models/tiny-qwen3")
    task = {
        "op": "evaluate", "task": "gsm8k", "data": str(tmp_path), "limit": len(rows), "num_fewshot": 0,
        "max_tokens": MAX_TOKENS, "chat": True,
    }  # fmt: skip
    options = {
        "model": "tiny-qwen3", "base_url": service.url, "capture": "resid_post@all", "run": "night",
        "tokenizer": model,
    }  # fmt: skip
    options |= {"enable_thinking": False}  # as the reference has it
    reference = {"model": model, "batch_size": 4, "dtype": "float32", "device": "cpu", "threads": 1}
    driven, wanted = lm_eval(task | {"backend": "actograph", "model_args": options}, task | reference)
    assert [one["scores"] for one in driven["samples"]] == [one["scores"] for one in wanted["samples"]]
    key = "exact_match,flexible-extract"
    matrix = ours.matrix("resid_post.1", tag="night", label=key, positions="last_prompt")
    scored = dict(zip(matrix.sample_index.tolist(), matrix.labels.tolist(), strict=True))
    assert scored == {n: one["scores"]["flexible-extract"][1] for n, one in enumerate(driven["samples"])}
    assert all(sorted(one.hooks) == LAYERS for one in ours.sessions.list(tag="night"))
    assert probe_score(matrix) > 0.9


def test_the_verb_runs_lm_eval_itself(
    service: Service, ours: Client, lm_eval: Ask, shared: Path, tmp_path: Path
) -> None:
    rows = tmp_path / "choices.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in islice(_questions(service, shared), 2)))
    config = Path(__file__).with_name("choices.yaml").read_text()
    config += f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {rows}}}}}\n"
    (tmp_path / "choices.yaml").write_text(config)
    model = shared / "models/tiny-qwen3"
    arguments = [
        "--url", service.url, "lm-eval", "--tasks", "choices", "--include_path", str(tmp_path),
        "--model_args", f"model=tiny-qwen3,tokenizer={model},capture=resid_post@all,run=verb",
    ]  # fmt: skip
    (done,) = lm_eval({"op": "verb", "arguments": arguments})
    assert done["status"] == 0
    assert "acc_norm" in done["out"]
    sessions = list(ours.sessions.list(tag="verb"))
    assert len(sessions) == 8 and all("acc,none" in one.scores for one in sessions)
