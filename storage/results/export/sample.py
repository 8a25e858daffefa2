"""The files of one sample: its record, its turns, and what its session holds."""

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any, Literal

import numpy as np

from actograph import tensor_files
from actograph.contract import hooks, resources
from actograph.contract.errors import ActographError, NotFound, StoreDamaged
from actograph.contract.resources import Sample, TensorInfo, ToolMessage
from actograph.contract.tool_calls import MalformedCall, ToolCall, recorded_calls
from actograph.tensor_files import Array
from storage.artifacts.store import ArtifactStore
from storage.results.export.archive import TarGz, new_spool
from storage.sessions.manifest import MANIFEST_NAME, SessionManifest
from storage.sessions.reader import SessionReader

log = logging.getLogger(__name__)

Detail = Literal["none", "meta", "sampled"]

#: columns of each row that `sampled` shows
FEATURES = 50
#: bytes of rows that are read at once
_BLOCK_BYTES = 4 << 20
_OF_LINE = {
    "sample_index", "condition", "epoch", "status", "prompt", "completion", "finish_reason", "scores",
    "readouts", "prompt_tokens", "generated_tokens", "tool_use", "seed", "session_id", "error",
}  # fmt: skip
_OF_STATE = {"prompt_tokens", "generated_tokens", "rows", "bytes", "dtype", "files"}
_OF_MANIFEST = {"revision", "capture", "sampling", "interventions", "turns", "segments", "versions"}


@dataclass(kw_only=True)
class StoredSample:
    """Stored data of one sample."""

    session: resources.Session | None = None
    reader: SessionReader | None = None
    manifest: SessionManifest | None = None
    error: ActographError | None = None

    @classmethod
    def of(cls, store: ArtifactStore, session: resources.Session | None, detail: Detail) -> "StoredSample":
        if session is None or detail == "none":
            return cls(session=session)
        recorded = next((file for file in session.files if file.name == MANIFEST_NAME), None)
        reader = SessionReader(store, session.id, recorded=recorded)
        try:
            return cls(session=session, reader=reader, manifest=reader.manifest)
        except (NotFound, StoreDamaged) as error:
            log.warning("the export leaves session %s out: %s", session.id, error)
            return cls(session=session, error=error)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        return self.session.hooks if self.session is not None else {}


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A sample whose session is read."""

    sample: Sample
    name: str
    held: StoredSample
    #: content of its record, closed by `write`
    record: IO[bytes]


def prepare(sample: Sample, held: StoredSample, *, name: str, task: str, detail: Detail) -> Prepared:
    """Read what the record of a sample shows. An error of unreadable rows is stored in `held`."""
    spool = new_spool()
    try:
        _write_record(spool, _named(sample, name, task), held, detail)
    except BaseException:
        spool.close()
        raise
    return Prepared(sample=sample, name=name, held=held, record=spool)


def write(tar: TarGz, prepared: Prepared, *, detail: Detail) -> Iterator[bytes]:
    """Add the files of a sample."""
    sample, held, name = prepared.sample, prepared.held, prepared.name
    with prepared.record as spool:
        if held.session is not None and detail != "none":
            yield from tar.add(f"agent_states/{name}.json", json_file(_agent_state(held.session, held)))
        lines = b"".join(json_line(turn) for turn in turns(sample, held.manifest))
        yield from tar.add(f"trajectories/{name}.jsonl", lines)
        yield from tar.add(f"samples/{name}.json", spool)


def line(sample: Sample, name: str) -> dict[str, Any]:
    """Line of a sample in `dataset.jsonl`."""
    return {"name": name, **_problem(sample), **sample.model_dump(mode="json", include=_OF_LINE)}


def _named(sample: Sample, name: str, task: str) -> dict[str, Any]:
    return {"name": name, "task": task, **sample.model_dump(mode="json"), **_problem(sample)}


def _problem(sample: Sample) -> dict[str, Any]:
    """The question, or a capture job's own prompt or messages; and the right answer."""
    given = sample.input
    problem = given.get("question") or given.get("prompt") or given.get("messages")
    return {"problem": problem, "gold": given.get("answer")}


def _write_record(spool: IO[bytes], record: dict[str, Any], held: StoredSample, detail: Detail) -> None:
    if detail == "sampled" and held.reader is not None and held.error is None:
        try:
            spool.write(json_file(record).removesuffix(b"\n}\n") + b',\n "activations": ')
            for chunk in sampled(held.reader, held.tensors):
                spool.write(chunk)
            spool.write(b"\n}\n")
            return
        except (NotFound, StoreDamaged) as error:
            log.warning("the export leaves activations of %s out: %s", held.reader.session_id, error)
            held.error = error
            spool.seek(0)
            spool.truncate()
    if detail != "none":
        record["activations"] = described(held.tensors) if held.error is None else {}
    if held.error is not None:
        record["activations_error"] = held.error.as_record()
    spool.write(json_file(record))


def _agent_state(session: resources.Session, held: StoredSample) -> dict[str, Any]:
    """Contents of a session: hooks, files, and its origin from the manifest."""
    state: dict[str, Any] = {"session_id": session.id, "hooks": described(session.hooks)}
    state |= session.model_dump(mode="json", include=_OF_STATE)
    if held.error is not None:
        return state | {"error": held.error.as_record()}
    if held.manifest is not None:
        state |= held.manifest.model_dump(mode="json", include=_OF_MANIFEST)
    return state


def described(tensors: Mapping[str, TensorInfo]) -> dict[str, dict[str, Any]]:
    """Flat hook name -> hook, shape, dtype and bytes."""
    found: dict[str, dict[str, Any]] = {}
    for hook, info in tensors.items():
        flat = hooks.flat_name(hook)
        fields = info.model_dump(exclude_none=True)
        found[hook if flat in found else flat] = {"hook": hook, "bytes": fields.pop("nbytes"), **fields}
    return found


def sampled(reader: SessionReader, tensors: Mapping[str, TensorInfo]) -> Iterator[bytes]:
    """A JSON object in blocks of rows: flat hook name -> the first stored features of every row.

    `features` lists their numbers in the model if the job captured chosen ones. Values are the shortest
    decimals that read back as the stored ones; NaN and infinities are null.

    Raises:
        StoreDamaged: the session's files are not what its manifest says.
    """
    chosen = reader.manifest.capture.get("features") or {}
    heads = chosen.get("heads")
    yield b"{"
    for number, (flat, fields) in enumerate(described(tensors).items()):
        rows, width = fields["shape"]
        entry = {
            "format": "sampled_tensor",
            **{name: fields[name] for name in ("hook", "shape", "dtype", "first_row")},
            "sample_info": f"first_{min(FEATURES, width)}_features",
        }
        indices = chosen.get("indices")
        if heads is not None:
            size = width // len(heads)
            indices = [head * size + column for head in heads for column in range(size)]
        if indices is not None:
            entry |= {
                "sample_info": f"first_{min(FEATURES, width)}_chosen_features",
                "features": indices[:FEATURES],
            }
        separator = ",\n  " if number else "\n  "
        yield f"{separator}{json.dumps(flat)}: {json.dumps(entry)[:-1]}, ".encode() + b'"data": ['
        block = max(1, _BLOCK_BYTES // max(1, width * tensor_files.itemsize(fields["dtype"])))
        for start in range(0, rows, block):
            piece = reader.rows(fields["hook"], start, min(start + block, rows))
            values = tensor_files.value_array(piece.dtype, piece.shape, piece.data)[:, :FEATURES]
            yield (b", " if start else b"") + ", ".join(_json_rows(values)).encode()
        yield b"]}"
    yield b"\n }"


def _json_rows(values: Array) -> Iterator[str]:
    texts = values.astype(str)
    if values.dtype.kind == "f":
        texts = np.where(np.isfinite(values), texts, "null")
    for row in texts:
        yield f"[{', '.join(row.tolist())}]"


def turns(sample: Sample, manifest: SessionManifest | None) -> Iterator[dict[str, Any]]:
    """One mapping for the prompt, and one for every turn of the model or result of a tool.

    `tokens` counts a turn's own tokens. It is null for results of tools, which are part of the next turn's
    prompt. `segments` are ranges of the session's tokens.
    """
    spans = list(manifest.turns) if manifest is not None else []
    if sample.prompt is not None:
        end = spans[0].start + spans[0].prompt_tokens if spans else None
        yield {
            "turn": 0,
            "role": "prompt",
            "content": sample.prompt,
            "tokens": sample.prompt_tokens,
            "segments": None if end is None else _segments(manifest, spans[0].start, end),
        }
    messages = messages_of(sample)
    last = max((n for n, message in enumerate(messages, 1) if message.role == "assistant"), default=0)
    unread = iter(spans)
    for number, message in enumerate(messages, start=1):
        turn: dict[str, Any] = {"turn": number, "role": message.role, "content": message.content}
        if message.role == "tool":
            yield turn | {"error": message.error, "tokens": None}
            continue
        span = next(unread, None)
        turn["tokens"] = None if sample.messages else sample.generated_tokens
        turn["segments"] = None
        if span is not None:
            begin = span.start + span.prompt_tokens
            turn["tokens"] = span.stop - begin
            turn["segments"] = _segments(manifest, begin, span.stop)
        if calls := recorded_calls(message.content):
            turn["tool_calls"] = [_call(call) for call in calls]
        yield turn | ({"finish_reason": sample.finish_reason} if number == last else {})


def messages_of(sample: Sample) -> list[ToolMessage]:
    """The turns after the prompt; without tools, the completion."""
    if sample.messages or sample.completion is None:
        return list(sample.messages)
    return [ToolMessage(role="assistant", content=sample.completion)]


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


def json_line(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode() + b"\n"


def json_file(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, indent=1).encode() + b"\n"
