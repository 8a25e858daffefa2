"""The events of a sample in an Inspect log, which `inspect_ai.analysis` and the viewer's transcript read.

The forms are those of inspect_ai's event package: the sample, each generation with its whole input, each call
of a tool, the scores, the error. Times are those of the sample: when each turn ran is not stored.
"""

from collections.abc import Iterator, Mapping
from typing import Any


def events_of(record: Mapping[str, Any], config: Mapping[str, Any], start: str, end: str) -> Iterator[Any]:
    """The events of one sample.

    Args:
        record: the sample as the log has it.
        config: of all its generations.
        start, end: times of the sample, in ISO's form.
    """
    seconds = record["total_time"] or 0.0
    for number, event in enumerate(_events(record, config, end)):
        is_late = event["event"] in ("score", "error")
        at = {"timestamp": end if is_late else start, "working_start": seconds if is_late else 0.0}
        yield {"uuid": f"{record['uuid']}-event-{number}", **at, **event}


def _events(record: Mapping[str, Any], config: Mapping[str, Any], end: str) -> Iterator[dict[str, Any]]:
    sample = {name: record[name] for name in ("id", "input", "target")}
    yield {"event": "sample_init", "sample": sample, "state": {}}
    calls: dict[str, Any] = {}
    for place, message in enumerate(record["messages"]):
        if message["role"] == "assistant":
            calls = {call["id"]: call for call in message.get("tool_calls", ())}
            yield _generation(record, place, config) | {"completed": end}
        elif message["role"] == "tool" and message["tool_call_id"] in calls:
            yield _call(calls[message["tool_call_id"]], message) | {"completed": end}
    for score in record["scores"].values():
        yield {"event": "score", "score": score, "target": record["target"]}
    if "error" in record:
        yield {"event": "error", "error": record["error"]}


def _generation(record: Mapping[str, Any], place: int, config: Mapping[str, Any]) -> dict[str, Any]:
    """The generation of a message; tokens and time are known of all generations together."""
    messages = record["messages"]
    message, output = messages[place], record["output"]
    is_last = output["choices"][0]["message"] is message
    reason = output["choices"][0]["stop_reason"] if is_last else "tool_calls"
    made = {"model": output["model"], "choices": [{"message": message, "stop_reason": reason}]}
    if sum(one["role"] == "assistant" for one in messages) == 1:
        made |= {"usage": output["usage"], "time": output["time"]}
    (model,) = record["model_usage"]
    return {
        "event": "model",
        "model": model,
        "input": messages[:place],
        "tools": [],
        "tool_choice": "auto",
        "config": config,
        "output": made,
    }


def _call(call: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {
        "event": "tool",
        "type": "function",
        "id": call["id"],
        "function": call["function"],
        "arguments": call["arguments"],
        "result": result["content"],
        "message_id": result["id"],
    }
    return made | ({"error": result["error"]} if "error" in result else {})
