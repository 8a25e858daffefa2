"""Tasks of a client's own in a drain."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from actograph.contract.resources import JobStatus

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

EXAMPLES = [{"story": "1+2?", "a": 1, "b": 2}, {"story": "3+4?", "a": 3, "b": 4}]
TASK: dict[str, Any] = {
    "name": "sums",
    "prompt": "{{story}} ({{a}}, {{b}})",
    "target": "{{(a | int) + (b | int)}}",
    "question": "story",
}
SUMS = [{"story": f"{i}+{i}?", "a": i, "b": i} for i in range(10, 15)]


def test_inline_examples_stand_before_every_question(bench: "Bench") -> None:
    rows = Path(bench.settings.data_roots[0]) / "sums.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in SUMS))
    dataset = {"path": rows.name}
    task = TASK | {"fewshot": {"samples": EXAMPLES}}
    conditions = [{"name": "plain"}, {"name": "polite", "suffix": "Please!"}]
    job_id = bench.submit(task=task, dataset=dataset, conditions=conditions)
    bench.drain().look()
    assert bench.status(job_id) is JobStatus.COMPLETED
    shown = [("user", "1+2? (1, 2)"), ("assistant", "3"), ("user", "3+4? (3, 4)"), ("assistant", "7")]
    for sample in bench.samples(job_id):
        story = f"{10 + sample.sample_index}+{10 + sample.sample_index}?"
        asked = f"{story} Please!" if sample.condition == "polite" else story
        turns = [*shown, ("user", f"{asked} ({10 + sample.sample_index}, {10 + sample.sample_index})")]
        expected = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
        assert sample.prompt is not None
        assert sample.prompt.startswith(expected)
        assert sample.input["answer"] == str(2 * (10 + sample.sample_index))
    fewer = bench.submit(task=task, dataset=dataset, num_fewshot=1, apply_chat_template=False)
    bench.drain().look()
    assert [s.prompt for s in bench.samples(fewer)] == [
        f"1+2? (1, 2) 3\n\n{i}+{i}? ({i}, {i})" for i in range(10, 15)
    ]
