"""A body is counted before it is parsed, and its long list is cut where its items end."""

import json
import random
from typing import Any

import pytest

from actograph.contract.batches import BatchLine
from actograph.contract.chat.chat import ChatCompletionRequest, CompletionRequest
from actograph.contract.errors import PayloadTooLarge
from actograph.contract.interventions import NewVector
from actograph.contract.specs import AnyJobSpec, CaptureJobSpec, job_spec_adapter
from api.problems import json_outline, validation
from api.problems.json_outline import (
    SLICE_ITEMS,
    SLICE_TOKENS,
    SMALL_BYTES,
    Bounds,
    outline,
    require_bounded,
)
from api.problems.validation import InvalidFields, parse_body, parse_job_spec

CAPTURE = {"kind": "capture", "model": "m"}
#: texts that look like structure, with every escape
TEXTS = ["plain", '[{"a":1}],', "\\", '\\"', '"', '\\\\"]}', "ключ, 🎈: [", "\n\t\u0001", ""]


def encoded(value: Any, *, ascii_only: bool = True) -> bytes:
    return json.dumps(value, ensure_ascii=ascii_only).encode()


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_slices_hold_the_items_of_the_list(
    seed: int, ascii_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = random.Random(seed)
    # escapes fall on the ends of blocks
    monkeypatch.setattr(json_outline, "BLOCK", 1 << 10)
    items = [{"prompt": draw.choice(TEXTS) * draw.randrange(40), "n": [draw.random()]} for _ in range(3_000)]
    body = encoded({"before": TEXTS, "inputs": items, "after": {"inputs": [1]}}, ascii_only=ascii_only)
    assert len(body) > 100 * json_outline.BLOCK
    found = outline(body, Bounds(), "inputs")
    first = json.loads(found.shell)
    together = list(first["inputs"])
    for number, piece in found.further_slices():
        assert number == len(together)
        together += json.loads(piece)
        assert len(together) - number <= SLICE_ITEMS
    assert together == items
    assert found.items == len(items)
    assert first["before"] == TEXTS
    assert first["after"] == {"inputs": [1]}


@pytest.mark.parametrize("count", [SLICE_ITEMS - 1, SLICE_ITEMS, SLICE_ITEMS + 1, 3 * SLICE_ITEMS])
def test_a_spec_of_many_inputs_is_whole(count: int) -> None:
    inputs = [{"prompt": f"prompt {number}"} for number in range(count)]
    spec = parse_job_spec(encoded(CAPTURE | {"inputs": inputs}))
    assert isinstance(spec, CaptureJobSpec)
    assert [given.prompt for given in spec.inputs] == [given["prompt"] for given in inputs]


def test_long_items_make_short_slices() -> None:
    talk = [{"role": "user", "content": "x"}] * 900
    inputs = [{"messages": talk}] * 40
    spec = parse_job_spec(encoded(CAPTURE | {"inputs": inputs}))
    assert isinstance(spec, CaptureJobSpec)
    assert [len(given.messages or ()) for given in spec.inputs] == [900] * 40


def test_errors_beyond_the_first_slice_name_their_item() -> None:
    inputs: list[dict[str, str]] = [{"prompt": "x"}] * 2500
    for field, place in (({"promt": "x"}, "/inputs/2500/promt"), ({"prompt": "\0"}, "/inputs/2500/prompt")):
        with pytest.raises(InvalidFields) as caught:
            parse_job_spec(encoded(CAPTURE | {"inputs": [*inputs, field, *inputs]}))
        assert place in {error.pointer for error in caught.value.errors}


def test_more_inputs_than_a_job_may_have_are_refused() -> None:
    with pytest.raises(InvalidFields, match="at most 100000 items after validation, not 100001"):
        parse_job_spec(encoded(CAPTURE | {"inputs": [{"prompt": "x"}] * 100_001}))


@pytest.mark.parametrize(
    "body",
    [
        b'{"junk": [' + b"[]," * 2_000_000 + b"[]]}",
        b"[" * 3_000_000,
        b'{"inputs": [' + b"[]," * 2_000_000 + b"[]]}",
        b'{"inputs": [{"prompt": [' + b"[]," * 2_000_000 + b"[]]}]}",
        b'{"inputs": "' + b"\\" * 6_000_000 + b'"}',
        b"{" + b",".join(b'"k%d":0' % number for number in range(64_000)) + b"}",
        b'{"kind": "capture", "sampling": {' + b",".join(b'"k%d":0' % n for n in range(64_000)) + b"}}",
        b'{"kind": "capture", "model": "m", "inputs": [' + b'{"a":0,"b":0,"c":0},' * 20_000 + b"{}]}",
        b'{"kind": "capture", "model": "m", "interventions": [{"vector": [' + b'"x",' * 100_000 + b"0]}]}",
    ],
    ids=["junk", "depth", "items", "item", "escapes", "keys", "nested keys", "keys of items", "vector"],
)
def test_a_body_of_many_values_is_refused_and_few_are_parsed(
    body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser gets no more structures than one slice and the rest of a body may have."""
    parsed = []

    class Counted:
        def validate_json(self, data: bytes) -> AnyJobSpec:
            parsed.append(sum(data.count(mark) for mark in (b"{", b"[", b":")))
            return job_spec_adapter.validate_json(data)

    monkeypatch.setattr(validation, "submitted_spec_adapter", Counted())
    with pytest.raises((PayloadTooLarge, InvalidFields)):
        parse_job_spec(body)
    assert sum(parsed) <= Bounds().structures + SLICE_TOKENS


def test_errors_of_one_body_are_few() -> None:
    fields = {f"k{number}": 0 for number in range(8_000)}
    with pytest.raises(InvalidFields) as caught:
        parse_job_spec(encoded(CAPTURE | {"inputs": [{"prompt": "x"}]} | fields))
    assert len(caught.value.errors) == 20


@pytest.mark.parametrize("kind", [ChatCompletionRequest, CompletionRequest, BatchLine, NewVector])
def test_every_model_has_bounds(kind: type) -> None:
    body = b'{"junk": [' + b"[]," * 1_000_000 + b"[]]}"
    with pytest.raises(PayloadTooLarge, match=r"more than \d+ objects, lists and fields"):
        parse_body(kind, body)


def test_the_largest_requests_that_are_meant_pass() -> None:
    message = {"role": "user", "content": [{"type": "text", "text": "one, two: [three]"}]}
    chat = parse_body(ChatCompletionRequest, encoded({"model": "m", "messages": [message] * 9_000}))
    assert len(chat.messages) == 9_000
    text = parse_body(CompletionRequest, encoded({"model": "m", "prompt": [[7] * 500] * 2_000}))
    assert len(text.prompt) == 2_000
    vector = parse_body(
        NewVector, encoded({"name": "v", "hook": "resid_post.0", "vector": [0.5] * 1_000_000})
    )
    assert vector.hook == "resid_post.0"
    commas = "one, two, three: [four], {five}; " * 20_000
    parse_job_spec(encoded(CAPTURE | {"inputs": [{"prompt": commas}] * 3}))


def test_a_small_body_is_not_looked_at() -> None:
    require_bounded(b"[" * SMALL_BYTES, Bounds(structures=1))
    with pytest.raises(PayloadTooLarge):
        require_bounded(b"[" * (SMALL_BYTES + 1), Bounds(structures=1))
