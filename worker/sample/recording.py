"""From captured rows to session files: one `BatchRecorder` per batch, one session per sample."""

import importlib.metadata
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from actograph.contract import resources
from actograph.contract.errors import ActographError, CaptureFailed, ServiceUnavailable
from actograph.contract.specs import SamplingSpec
from storage.artifacts.store import ArtifactStore
from storage.index.ids import new_session_id
from storage.queue.leases import LeasedSample
from storage.sessions.manifest import SessionManifest, StoredTensor
from storage.sessions.sessions import NewSession
from storage.sessions.writer import SessionWriter, TensorRows
from worker.engine.requests import RowChunk
from worker.sample.conversation import Conversation
from worker.sample.provenance import Provenance
from worker.sample.unforeseen import unforeseen

#: safetensors names
DTYPE_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
}
WRITERS = 4


@dataclass(frozen=True, slots=True)
class _Delivered:
    """Kind of the rows that the engine delivered under one name."""

    width: int
    dtype: str
    over: int | None


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A session whose files are in the store, ready for the index."""

    session_id: str
    prompt_tokens: int
    generated_tokens: int
    rows: int
    tensors: Mapping[str, resources.TensorInfo]
    files: Sequence[resources.SessionFile]

    def as_new(self, sample: LeasedSample, provenance: Provenance, correct: bool | None) -> NewSession:
        return NewSession(
            id=self.session_id,
            job_id=sample.job_id,
            sample_id=sample.id,
            sample_index=sample.sample_index,
            condition=sample.condition,
            epoch=sample.epoch,
            model=provenance.structure.model,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            rows=self.rows,
            dtype=_common_dtype(self.tensors),
            hooks=self.tensors,
            files=self.files,
            correct=correct,
            identity_sha256=provenance.identity_sha256,
            # set by lines of batch files
            tags=sample.input.get("tags", ()),
            expires_after=sample.input.get("expires_after"),
        )


class BatchRecorder:
    """The engine's `RowSink`: writes each sample's chunks as shards of its session.

    Every attempt has its own session id, so an attempt that lost its lease can be removed safely.
    """

    def __init__(
        self,
        store: ArtifactStore,
        samples: Sequence[LeasedSample],
        provenance: Provenance,
        truncated_from: Mapping[int, int] | None = None,
        samplings: Sequence[SamplingSpec | None] | None = None,
    ) -> None:
        """
        Args:
            truncated_from: place in `samples` -> number of tokens before the text was cut.
            samplings: sampling of each sample; None: the provenance's for all.
        """
        self._store = store
        self._samplings = samplings or [provenance.sampling] * len(samples)
        self._truncated_from = truncated_from or {}
        self._samples = samples
        self._provenance = provenance
        self._writers: dict[int, SessionWriter] = {}
        self._delivered: dict[int, dict[str, _Delivered]] = {}
        #: error of a store that is unavailable
        self._away: ServiceUnavailable | None = None

    def write(self, index: int, rows: Mapping[str, RowChunk]) -> None:
        """Write rows of a sample. Raises CaptureFailed if a value is not finite, and the store's errors."""
        shard = [_tensor_rows(hook, chunk) for hook, chunk in rows.items()]
        if index not in self._writers:
            self._writers[index] = SessionWriter(self._store, new_session_id())
            self._delivered[index] = {}
        self._delivered[index] |= {
            part.name: _Delivered(part.shape[1], part.dtype, rows[part.name].over) for part in shard
        }
        self._writers[index].write_shard(shard)

    def reset(self, index: int) -> None:
        writer = self._writers.pop(index, None)
        if writer is not None:
            writer.discard()

    def finish(self, finished: Mapping[int, Conversation]) -> dict[int, Recorded | ActographError]:
        """Close the sessions of finished samples, several at once; discard the others.

        The result holds an error for each session that could not be stored.
        """
        for index in [i for i in self._writers if i not in finished]:
            self.reset(index)
        with ThreadPoolExecutor(WRITERS, thread_name_prefix="session-writer") as pool:
            outcomes = pool.map(lambda item: self._finish_one(*item), finished.items())
        return dict(zip(finished, outcomes, strict=True))

    def discard(self) -> None:
        """Remove unfinished sessions."""
        for index in list(self._writers):
            self.reset(index)

    def _finish_one(self, index: int, finished: Conversation) -> Recorded | ActographError:
        if self._away is not None:  # each would wait for the store in vain
            self.reset(index)
            return self._away
        writer = self._writers.get(index)
        if writer is None:
            return CaptureFailed("the engine captured no rows for this sample; nothing was stored")
        try:
            manifest, positions = self._manifest(index, finished, writer.session_id)
            files = writer.finish(manifest, finished.token_ids, positions)
        except ActographError as error:
            self.reset(index)
            if isinstance(error, ServiceUnavailable):
                self._away = error
            return error
        except Exception as error:  # noqa: BLE001 (it fails this sample alone, and the log has the trace)
            self.reset(index)
            return unforeseen(error, f"while the session of sample {self._samples[index].id} was stored")
        del self._writers[index]
        stored = writer.manifest or manifest
        return Recorded(
            session_id=manifest.session_id,
            prompt_tokens=finished.prompt_tokens,
            generated_tokens=manifest.generated_tokens,
            rows=finished.rows,
            tensors=stored.tensors,
            files=files,
        )

    def _manifest(
        self, index: int, finished: Conversation, session_id: str
    ) -> tuple[SessionManifest, list[int] | None]:
        """The manifest with the expected rows, and the tokens of rows that are not consecutive."""
        sample, origin, sampling = self._samples[index], self._provenance, self._samplings[index]
        tensors, positions = self._tensors(index, finished)
        reason = finished.generations[-1].finish_reason
        manifest = SessionManifest(
            session_id=session_id,
            job_id=sample.job_id,
            sample_id=sample.id,
            sample_index=sample.sample_index,
            condition=sample.condition or None,
            epoch=sample.epoch,
            model=origin.structure.model,
            revision=origin.structure.revision,
            tokenizer_sha256=origin.tokenizer_sha256,
            template_sha256=origin.template_sha256,
            identity_sha256=origin.identity_sha256,
            identity=origin.structure.identity,
            resolved_hooks=dict(origin.resolved),
            capture=origin.capture.model_dump(mode="json"),
            capture_sha256=origin.capture.digest(),
            dtype=origin.capture.dtype,
            prompt_tokens=finished.prompt_tokens,
            generated_tokens=len(finished.token_ids) - finished.prompt_tokens,
            truncated_from=self._truncated_from.get(index),
            turns=list(finished.turns),
            segments=finished.segments,
            sampling=sampling.model_dump(mode="json") if sampling else {},
            interventions=list(origin.steering.records(sample.condition)),
            seed=sample.seed,
            finish_reason=reason if reason in ("stop", "length") else None,
            versions=library_versions(),
            created_at=int(time.time()),
            tensors=tensors,
        )
        return manifest, positions

    def _tensors(
        self, index: int, finished: Conversation
    ) -> tuple[dict[str, StoredTensor], list[int] | None]:
        """The expected tensors of a session, and the tokens of rows that are not consecutive."""
        origin, positions, tensors = self._provenance, RowPositions(), dict[str, StoredTensor]()
        wanted, is_consecutive = origin.capture.positions, origin.is_consecutive
        whole = finished.due_tokens(wanted, tail_only=False)
        tail = finished.due_tokens(wanted, tail_only=True) if origin.tail_only else []
        due = {hook: tail if hook in origin.tail_only else whole for hook in origin.hooks}
        for hook, tokens in sorted(due.items(), key=lambda item: -len(item[1])):
            offset = None if is_consecutive else positions.place(tokens)
            first = next(iter(tokens), finished.prompt_tokens if is_consecutive else 0)
            for name, summary in origin.tensor_names(hook):
                found = self._delivered[index].get(name)
                if found is None:
                    raise CaptureFailed(f"{name}: nothing was captured")
                if summary is not None and found.over != len(tokens):
                    raise CaptureFailed(f"{name}: {found.over} rows were summed up, {len(tokens)} expected")
                tensors[name] = StoredTensor(
                    shape=(len(tokens) if summary is None else min(len(tokens), 1), found.width),
                    dtype=found.dtype,
                    first_row=first,
                    position_offset=offset,
                    summary=summary,
                    over=found.over,
                )
        names = [name for hook in origin.hooks for name, _ in origin.tensor_names(hook)]
        return {name: tensors[name] for name in names}, positions.tokens


class RowPositions:
    """Tokens of rows that are not consecutive, each list stored once."""

    def __init__(self) -> None:
        self.tokens: list[int] | None = None

    def place(self, tokens: Sequence[int]) -> int:
        """Offset of `tokens` in the stored tensor. Call it for the longest lists first.

        A shorter list is often the end of a longer one: logits lack the first rows of a turn.
        """
        have = self.tokens = self.tokens or []
        start = len(have) - len(tokens)
        if start < 0 or have[start:] != list(tokens):
            start = len(have)
            have += tokens
        return start


@cache
def library_versions() -> dict[str, str]:
    names = ("actograph", "torch", "transformers", "nnsight")
    return {name: importlib.metadata.version(name) for name in names}


def _tensor_rows(hook: str, chunk: RowChunk) -> TensorRows:
    tensor = chunk.tensor
    undefined = chunk.over is not None and hook.endswith(".kurtosis")  # NaN where a channel does not vary
    if tensor.is_floating_point() and not undefined and not torch.isfinite(tensor.sum(dtype=torch.float32)):
        # the sum of finite values may overflow, so check each value
        bad = (~torch.isfinite(tensor)).any(dim=1).nonzero()
        if bad.numel():
            if chunk.over is not None:
                raise CaptureFailed(f"{hook}: of {chunk.over} rows some are not finite (NaN or infinity)")
            place = int(bad[0])
            row = chunk.first_row + place if chunk.tokens is None else chunk.tokens[place]
            raise CaptureFailed(f"{hook}: token {row} has a value that is not finite (NaN or infinity)")
    return TensorRows(
        name=hook,
        dtype=DTYPE_NAMES[tensor.dtype],
        shape=(tensor.shape[0], tensor.shape[1]),
        first_row=chunk.first_row,
        data=_bytes_of(tensor),
        tokens=chunk.tokens,
    )


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The tensor's memory without a copy, as bytes: numpy knows no bfloat16."""
    if not tensor.numel():
        return memoryview(b"")  # an empty array's memory cannot be cast
    array: Any = tensor.contiguous().view(torch.uint8).numpy()
    return memoryview(array).cast("B")


def _common_dtype(tensors: Mapping[str, resources.TensorInfo]) -> str:
    names = {info.dtype for info in tensors.values()}
    return names.pop() if len(names) == 1 else "mixed"
