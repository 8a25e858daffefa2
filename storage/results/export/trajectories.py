"""The turns of a sample: prompt, answers of the model, and results of its tools."""

from collections.abc import Iterator
from typing import Any

from actograph.contract.chat.tool_calls import MalformedCall, ToolCall, recorded_calls
from actograph.contract.resources import Sample
from storage.sessions.manifest import SessionManifest, Turn


def turns(sample: Sample, manifest: SessionManifest | None) -> Iterator[dict[str, Any]]:
    """One mapping for the prompt, and one for every turn of the model or result of a tool.

    `tokens` counts a turn's own tokens. It is null for results of tools, which are part of the next turn's
    prompt. `segments` are ranges of the session's tokens.
    """
    spans = list(manifest.turns) if manifest is not None else []
    if sample.prompt is not None:
        segments = None
        if spans:
            segments = _segments(manifest, spans[0].start, spans[0].start + spans[0].prompt_tokens)
        yield {
            "turn": 0,
            "role": "prompt",
            "content": sample.prompt,
            "tokens": sample.prompt_tokens,
            "segments": segments,
        }
    if sample.messages:
        yield from _dialogue(sample, manifest, spans)
    elif sample.completion is not None:
        yield _answer(1, sample.completion, manifest, spans[0] if spans else None) | {
            "tokens": sample.generated_tokens,
            "finish_reason": sample.finish_reason,
        }


def _dialogue(
    sample: Sample, manifest: SessionManifest | None, spans: list[Turn]
) -> Iterator[dict[str, Any]]:
    answered = 0
    last = max(i for i, message in enumerate(sample.messages) if message.role == "assistant")
    for number, message in enumerate(sample.messages):
        if message.role == "tool":
            yield {
                "turn": number + 1,
                "role": "tool",
                "content": message.content,
                "error": message.error,
                "tokens": None,
            }
            continue
        span = spans[answered] if answered < len(spans) else None
        answered += 1
        turn = _answer(number + 1, message.content, manifest, span)
        yield turn | ({"finish_reason": sample.finish_reason} if number == last else {})


def _answer(number: int, content: str, manifest: SessionManifest | None, span: Turn | None) -> dict[str, Any]:
    begin, end = (span.start + span.prompt_tokens, span.stop) if span is not None else (0, 0)
    turn: dict[str, Any] = {
        "turn": number,
        "role": "assistant",
        "content": content,
        "tokens": end - begin if span is not None else None,
        "segments": _segments(manifest, begin, end) if span is not None else None,
    }
    calls = [_call(call) for call in recorded_calls(content)]
    return turn | ({"tool_calls": calls} if calls else {})


def _call(call: ToolCall | MalformedCall) -> dict[str, Any]:
    if isinstance(call, MalformedCall):
        return {"malformed": call.reason}
    return {"name": call.name, "arguments": dict(call.arguments)}


def _segments(manifest: SessionManifest | None, begin: int, end: int) -> list[dict[str, Any]]:
    """The parts of the manifest's segments within these tokens."""
    found = manifest.segments if manifest is not None else []
    return [
        {"name": segment.name, "start": max(begin, segment.start), "stop": min(end, segment.stop)}
        for segment in found
        if max(begin, segment.start) < min(end, segment.stop)
    ]
