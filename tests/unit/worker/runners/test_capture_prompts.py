"""Prompts of capture jobs under conditions."""

from dataclasses import replace
from typing import Any

import pytest

from actograph.contract.job_specs import CaptureJobSpec
from storage.samples.expansion import capture_samples
from worker.runners import capture
from worker.runners.capture import CaptureRunner
from worker.runners.runner import Prompt


def test_conditions_change_prompts_and_conversations(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = [
        {"role": "system", "content": "own"}, {"role": "user", "content": "first"},
        {"role": "assistant", "content": "yes"}, {"role": "user", "content": "second"},
    ]  # fmt: skip
    spec = CaptureJobSpec.model_validate(
        {
            "kind": "capture",
            "model": "demo",
            "inputs": [{"prompt": "plain", "label": True}, {"messages": talk}, {"messages": talk[1:2]}],
            "conditions": [
                {"name": "a"},
                {"name": "b", "prefix": "Please:", "suffix": "Thanks.", "interventions": []},
                {"name": "c", "system": "new", "prefix": "Now\n"},
            ],
        }
    )
    monkeypatch.setattr(capture, "render_chat", lambda _, messages, **__: messages)
    monkeypatch.setattr(
        capture.text, "encode", lambda _, text, **__: replace(Prompt(text="", token_ids=(1,)), text=text)
    )
    tokenizer: Any = None
    runner = CaptureRunner(spec.model_dump(mode="json"), tokenizer, 100)
    found: dict[tuple[int, str], Any] = {}
    for sample in capture_samples(spec):
        lease: Any = sample
        found[sample.sample_index, sample.condition] = runner.prompt(lease).text
    assert [found[0, name] for name in "abc"] == ["plain", "Please: plain Thanks.", "Now\nplain"]
    assert found[1, "a"] == talk
    assert found[1, "b"] == [*talk[:3], {"role": "user", "content": "Please: second Thanks."}]
    changed = {"role": "user", "content": "Now\nsecond"}
    assert found[1, "c"] == [{"role": "system", "content": "new"}, *talk[1:3], changed]
    assert found[2, "c"] == [{"role": "system", "content": "new"}, {"role": "user", "content": "Now\nfirst"}]
