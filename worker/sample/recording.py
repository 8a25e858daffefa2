"""From captured rows to session files: one `UnitRecorder` per unit, one session per sample."""

import importlib.metadata
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch

from actograph.contract import resources
from actograph.contract.errors import ActographError, CaptureFailed, ServiceUnavailable
from actograph.contract.plans.estimate import is_tail_only
from actograph.contract.row_selection import FirstFeatures
from actograph.contract.specs import CaptureSpec, SamplingSpec
from storage.artifacts.store import ArtifactStore
from storage.index.ids import new_session_id
from storage.samples import LeasedSample
from storage.sessions.manifest import SessionManifest, StoredTensor
from storage.sessions.sessions import NewSession
from storage.sessions.writer import SessionWriter, TensorRows
from worker.engine.requests import Generation, Positions, RowChunk, RowShaping, StatisticsOptions
from worker.engine.rows.statistics import STATISTICS
from worker.sample import choosers
from worker.sample.conversation import Conversation
from worker.sample.finished_sample import FinishedSample, RowsWanted, of_conversation, of_generation
from worker.sample.segments import Markup
from worker.sample.steering import UNSTEERED, Steering
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


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Data common to all sessions of a slice."""

    structure: resources.ModelStructure
    tokenizer_sha256: str
    template_sha256: str | None
    capture: CaptureSpec
    hooks: Sequence[str]
    #: each name that the capture spec lists -> the hook that it stands for
    resolved: Mapping[str, str] = field(default_factory=dict)
    sampling: SamplingSpec | None  # None where nothing is generated
    markup: Markup
    steering: Steering = UNSTEERED

    @cached_property
    def tail_only(self) -> frozenset[str]:
        """Hooks that have rows from the last prompt token on."""
        return frozenset(hook for hook in self.hooks if is_tail_only(self.structure, hook))

    @property
    def identity_sha256(self) -> str | None:
        identity = self.structure.identity
        return None if identity is None else identity.sha256

    @property
    def positions(self) -> Positions:
        """Positions for the engine; "all" beside a chooser."""
        return choosers.named(self.capture.positions)

    @property
    def shaping(self) -> RowShaping:
        """Reduction and statistics computed on the device."""
        features = self.capture.features
        columns: slice | tuple[int, ...] | None = None
        if isinstance(features, FirstFeatures):
            columns = slice(features.first)
        elif features is not None:
            columns = tuple(features.indices)
        stats = self.capture.stats
        return RowShaping(
            columns=columns,
            chooser=choosers.chooser(self.capture.positions, self.markup),
            reduce=self.capture.reduce,
            statistics=None
            if stats is None
            else StatisticsOptions(threshold=stats.threshold, rows=stats.tensors),
        )


@dataclass(frozen=True, slots=True)
class _Came:
    """Rows delivered by the engine under one name."""

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
            # which a line of a batch brings along
            tags=sample.input.get("tags", ()),
            expires_after=sample.input.get("expires_after"),
        )


class UnitRecorder:
    """The engine's `RowSink`: writes each sample's chunks as shards of its session.

    Every attempt gets a session id of its own, so that an attempt that is fenced off can be
    removed without touching the one that was kept.
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
            truncated_from: tokens that a sample's text had before it was cut, by its place in `samples`.
            samplings: of each sample; None: the provenance's for all.
        """
        self._store = store
        self._samplings = samplings or [provenance.sampling] * len(samples)
        self._truncated_from = truncated_from or {}
        self._samples = samples
        self._provenance = provenance
        self._writers: dict[int, SessionWriter] = {}
        self._came: dict[int, dict[str, _Came]] = {}
        #: the store's error, once it takes no more
        self._away: ServiceUnavailable | None = None

    def write(self, index: int, rows: Mapping[str, RowChunk]) -> None:
        """Write rows of a sample. Raises CaptureFailed if a value is not finite, and the store's errors."""
        shard = [_tensor_rows(hook, chunk) for hook, chunk in rows.items()]
        if index not in self._writers:
            self._writers[index] = SessionWriter(self._store, new_session_id())
            self._came[index] = {}
        self._came[index] |= {
            part.name: _Came(part.shape[1], part.dtype, rows[part.name].over) for part in shard
        }
        self._writers[index].write_shard(shard)

    def reset(self, index: int) -> None:
        writer = self._writers.pop(index, None)
        if writer is not None:
            writer.discard()

    def finish(self, made: Mapping[int, Generation | Conversation]) -> dict[int, Recorded | ActographError]:
        """Close the sessions of these samples, several at once; the others are discarded.

        The result holds an error for each session that could not be stored.
        """
        for index in [i for i in self._writers if i not in made]:
            self.reset(index)
        with ThreadPoolExecutor(WRITERS, thread_name_prefix="session-writer") as pool:
            outcomes = pool.map(lambda item: self._finish_one(*item), made.items())
        return dict(zip(made, outcomes, strict=True))

    def discard(self) -> None:
        """Remove unfinished sessions."""
        for index in list(self._writers):
            self.reset(index)

    def _finish_one(self, index: int, made: Generation | Conversation) -> Recorded | ActographError:
        if self._away is not None:  # each would wait for the store in vain
            self.reset(index)
            return self._away
        writer = self._writers.get(index)
        if writer is None:
            return CaptureFailed("the engine captured no rows for this sample; nothing was stored")
        try:
            finished = self._finished(made)
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
            generated_tokens=finished.generated_tokens,
            rows=finished.rows,
            tensors={
                name: resources.TensorInfo(
                    shape=list(tensor.shape),
                    dtype=tensor.dtype,
                    first_row=tensor.first_row,
                    position_offset=tensor.position_offset,
                    summary=tensor.summary,
                    over=tensor.over,
                    nbytes=tensor.nbytes,
                )
                for name, tensor in stored.tensors.items()
            },
            files=files,
        )

    def _finished(self, made: Generation | Conversation) -> FinishedSample:
        origin = self._provenance
        wanted = RowsWanted(origin.capture.positions, origin.tail_only)
        if isinstance(made, Conversation):
            return of_conversation(made, wanted)
        return of_generation(made, wanted, origin.markup)

    def _manifest(
        self, index: int, finished: FinishedSample, session_id: str
    ) -> tuple[SessionManifest, list[int] | None]:
        """Expected rows, and the tokens of rows that are not consecutive."""
        sample, origin, sampling = self._samples[index], self._provenance, self._samplings[index]
        due = {hook: finished.due(hook) for hook in origin.hooks}
        positions = RowPositions()
        tensors = {}
        for hook, tokens in sorted(due.items(), key=lambda item: -len(item[1])):
            offset = None if isinstance(tokens, range) else positions.place(tokens)
            first = tokens.start if isinstance(tokens, range) else next(iter(tokens), 0)
            for name, summary in tensor_names(hook, origin.capture):
                came = self._came[index].get(name)
                if came is None:
                    raise CaptureFailed(f"{name}: nothing was captured")
                if summary is not None and came.over != len(tokens):
                    raise CaptureFailed(
                        f"{name}: {came.over} rows were summed up where {len(tokens)} were due"
                    )
                tensors[name] = StoredTensor(
                    shape=(len(tokens) if summary is None else min(len(tokens), 1), came.width),
                    dtype=came.dtype,
                    first_row=first,
                    position_offset=offset,
                    summary=summary,
                    over=came.over,
                )
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
            generated_tokens=finished.generated_tokens,
            truncated_from=self._truncated_from.get(index),
            turns=list(finished.turns),
            segments=list(finished.segments),
            sampling=sampling.model_dump(mode="json") if sampling else {},
            interventions=list(origin.steering.records(sample.condition)),
            seed=sample.seed,
            finish_reason=finished.manifest_reason,
            versions=library_versions(),
            created_at=int(time.time()),
            tensors={
                name: tensors[name] for hook in origin.hooks for name, _ in tensor_names(hook, origin.capture)
            },
        )
        return manifest, positions.tokens


class RowPositions:
    """The tokens of rows that are not consecutive, each list stored once."""

    def __init__(self) -> None:
        self.tokens: list[int] | None = None

    def place(self, tokens: Sequence[int]) -> int:
        """Offsets of `tokens` in the stored tensor; the longest lists must come first.

        A hook that lacks the first rows of a turn (logits) often has the last tokens of a longer list.
        """
        have = self.tokens = self.tokens or []
        start = len(have) - len(tokens)
        if start < 0 or have[start:] != list(tokens):
            start = len(have)
            have += tokens
        return start


def tensor_names(hook: str, capture: CaptureSpec) -> list[tuple[str, str | None]]:
    """The tensors that are stored for a hook: name, and what its single row is or None for plain rows."""
    names: list[tuple[str, str | None]] = []
    if capture.stats is None or capture.stats.tensors:
        names.append((hook, None if capture.reduce == "none" else capture.reduce))
    if capture.stats is not None:
        kinds = STATISTICS if capture.stats.threshold is not None else STATISTICS[:-1]
        names += [(f"{hook}.{kind}", kind) for kind in kinds]
    return names


@cache
def library_versions() -> dict[str, str]:
    names = ("actograph", "torch", "transformers", "nnsight")
    return {name: importlib.metadata.version(name) for name in names}


def _tensor_rows(hook: str, chunk: RowChunk) -> TensorRows:
    tensor = chunk.tensor
    undefined = chunk.over is not None and hook.endswith(".kurtosis")  # NaN where a channel does not vary
    if tensor.is_floating_point() and not undefined and not torch.isfinite(tensor.sum(dtype=torch.float32)):
        # the sum of finite values may overflow, so this is only a reason to look
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
    """The tensor's memory without a copy; numpy knows no bfloat16, so bytes are what is shown."""
    if not tensor.numel():
        return memoryview(b"")  # an empty array's memory cannot be cast
    array: Any = tensor.contiguous().view(torch.uint8).numpy()
    return memoryview(array).cast("B")


def _common_dtype(tensors: Mapping[str, resources.TensorInfo]) -> str:
    names = {info.dtype for info in tensors.values()}
    return names.pop() if len(names) == 1 else "mixed"
