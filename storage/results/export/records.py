"""Records of a sample in the files of a results folder."""

import json
from typing import Any

from actograph.contract.resources import Sample


def problem_of(sample: Sample) -> Any:
    """The question, or a capture job's own prompt or messages."""
    given = sample.input
    return given.get("question") or given.get("prompt") or given.get("messages")


def full(sample: Sample, name: str, task: str) -> dict[str, Any]:
    """The complete record of a sample, for its own file."""
    record = sample.model_dump(mode="json")
    return {
        "name": name,
        "task": task,
        **record,
        "problem": problem_of(sample),
        "gold": sample.input.get("answer"),
    }


def line(sample: Sample, name: str) -> dict[str, Any]:
    """Line of a sample in `dataset.jsonl`."""
    return {
        "name": name,
        "index": sample.index,
        "condition": sample.condition,
        "epoch": sample.epoch,
        "status": sample.status,
        "problem": problem_of(sample),
        "gold": sample.input.get("answer"),
        "prompt": sample.prompt,
        "completion": sample.completion,
        "finish_reason": sample.finish_reason,
        "scores": {key: score.model_dump() for key, score in sample.scores.items()},
        "prompt_tokens": sample.prompt_tokens,
        "generated_tokens": sample.generated_tokens,
        "tool_use": sample.tool_use.model_dump() if sample.tool_use else None,
        "seed": sample.seed,
        "session_id": sample.session_id,
        "error": sample.error.model_dump(exclude_none=True) if sample.error else None,
    }


def json_line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def json_file(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode() + b"\n"
