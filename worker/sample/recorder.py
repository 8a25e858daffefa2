"""From the captured rows of one sample to the files of its session."""

import importlib.metadata
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph import __version__
from actograph.contract import quantization, resources
from actograph.contract.errors import CaptureFailed
from actograph.contract.models import ModelIdentity
from actograph.contract.readouts import ReadoutValues, short_name, values_of
from actograph.contract.specs import SamplingSpec
from actograph.dtypes import DTYPES, SCALE_BYTES
from storage.artifacts.store import ArtifactStore
from storage.queue.leases import LeasedSample
from storage.sessions.manifest import SessionManifest, StoredTensor
from storage.sessions.sessions import NewSession
from storage.sessions.writer import SessionWriter, TensorRows
from worker.engine.messages import Rows
from worker.sample.conversation import Conversation
from worker.sample.provenance import Provenance
from worker.sample.replay import Replay
from worker.sample.replay_comparison import ReplayComparison


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
    readouts: Mapping[str, ReadoutValues]

    def as_new(self, sample: LeasedSample, provenance: Provenance, correct: bool | None) -> NewSession:
        return NewSession(
            id=self.session_id,
            job_id=sample.job_id,
            sample_id=sample.id,
            **sample.shown,
            model=provenance.structure.model,
            prompt_tokens=self.prompt_tokens,
            generated_tokens=self.generated_tokens,
            rows=self.rows,
            dtype=_common_dtype(self.tensors),
            hooks=self.tensors,
            files=self.files,
            correct=correct,
            source_session=sample.input.get("source_session"),
            identity_sha256=provenance.identity_sha256,
            # set by lines of batch files
            tags=sample.input.get("tags", ()),
            expires_after=sample.input.get("expires_after"),
        )


class SampleRecorder:
    """Writes the chunks of a sample's rows as shards of its session.

    Every claim announces its own session, so the files of a lost lease can be removed safely.
    """

    def __init__(
        self,
        store: ArtifactStore,
        sample: LeasedSample,
        provenance: Provenance,
        *,
        sampling: SamplingSpec | None,
        truncated_from: int | None = None,
        replay: Replay | None = None,
    ) -> None:
        """
        Args:
            sampling: of this sample.
            truncated_from: number of tokens before the text was cut; None if it was not.
            replay: the stored sample that is read again.
        """
        self._store = store
        self._sample = sample
        self._provenance = provenance
        self._sampling = sampling
        self._truncated_from = truncated_from
        self._replay = replay
        self._comparison: ReplayComparison | None = None
        if replay is not None and replay.source.same_model:
            self._comparison = ReplayComparison(replay.source.reader, provenance, replay.due)
        self._writer: SessionWriter | None = None
        self._delivered: dict[str, _Delivered] = {}
        #: readout -> the tokens of its values, and these
        self._read: dict[str, tuple[list[int], list[float]]] = {}

    def write(self, rows: Mapping[str, Rows]) -> None:
        """Write rows, and compare those of a replay.

        Raises CaptureFailed if a value is not finite, and the store's errors.
        """
        shard = [_tensor_rows(hook, chunk) for hook, chunk in rows.items()]
        if self._comparison is not None:
            self._comparison.add(rows)
        if self._writer is None:
            if self._sample.session_id is None:
                raise CaptureFailed("rows were captured of a sample that was claimed without a session")
            self._writer = SessionWriter(self._store, self._sample.session_id)
        self._delivered |= {
            part.name: _Delivered(part.shape[1], part.dtype, rows[part.name].over) for part in shard
        }
        self._writer.write_shard(shard)
        for name in self._provenance.readouts.keys() & rows.keys():
            self._note(name, rows[name])

    def _note(self, name: str, chunk: Rows) -> None:
        """Note values of a readout."""
        tokens, values = self._read.setdefault(name, ([], []))
        tokens += chunk.tokens or range(chunk.first_row, chunk.first_row + chunk.count)
        for piece in chunk.pieces:
            values += np.ascontiguousarray(piece).view("<f4")[:, 0].tolist()

    def reset(self) -> None:
        """Remove what was written."""
        writer, self._writer = self._writer, None
        self._delivered.clear()
        self._read.clear()
        if writer is not None:
            writer.discard()

    def finish(self, finished: Conversation) -> Recorded:
        """Close the session; call `reset` after an error.

        Raises:
            CaptureFailed: rows are missing.
            ReplayDiffers: rows of a replay differ from those of its session.
            ServiceUnavailable: the store is away.
        """
        if self._writer is None:
            raise CaptureFailed("the engine captured no rows for this sample; nothing was stored")
        manifest, positions = self._manifest(finished, self._writer.session_id)
        files = self._writer.finish(manifest, finished.token_ids, positions)
        stored = self._writer.manifest or manifest
        return Recorded(
            session_id=manifest.session_id,
            prompt_tokens=finished.prompt_tokens,
            generated_tokens=manifest.generated_tokens,
            rows=finished.rows,
            tensors=stored.tensors,
            files=files,
            readouts=self._readouts(finished),
        )

    def _readouts(self, finished: Conversation) -> dict[str, ReadoutValues]:
        """The values of each readout in short."""
        stopped = self._replay is None and finished.generations[-1].finish_reason == "readout"
        found: dict[str, ReadoutValues] = {}
        for name, readout in self._provenance.readouts.items():
            tokens, values = self._read.get(name, ([], []))
            if tokens:
                short = values_of(tokens, values, finished.prompt_tokens)
                ended = stopped and readout.wanted.crossed(short.last)
                found[short_name(name)] = short.model_copy(update={"stopped": ended})
        return found

    def _manifest(self, finished: Conversation, session_id: str) -> tuple[SessionManifest, list[int] | None]:
        """The manifest with the expected rows, and the tokens of rows that are not consecutive."""
        sample, origin, sampling, replay = self._sample, self._provenance, self._sampling, self._replay
        tensors, positions = self._tensors(finished)
        compared = {} if self._comparison is None else self._comparison.finish()
        tensors |= {
            name: tensors[name].model_copy(update={"compared": found}) for name, found in compared.items()
        }
        edits = list(origin.steering.records(sample.condition))
        reason = finished.generations[-1].finish_reason
        manifest = SessionManifest(
            session_id=session_id,
            source_session=None if replay is None else replay.manifest.session_id,
            job_id=sample.job_id,
            sample_id=sample.id,
            **sample.shown | {"condition": sample.shown["condition"] or None},
            model=origin.structure.model,
            revision=origin.structure.revision,
            tokenizer_sha256=origin.tokenizer_sha256,
            template_sha256=origin.template_sha256,
            identity_sha256=origin.identity_sha256,
            identity=origin.structure.identity,
            engine=origin.structure.engine,
            engine_reason=origin.structure.engine_reason,
            resolved_hooks=dict(origin.resolved),
            locations={
                hook: origin.structure.locations.get(origin.source_of(hook), origin.source_of(hook))
                for hook in origin.hooks
            },
            saes={name: one.record for name, one in origin.saes.items()},
            readouts={name: one.record for name, one in origin.readouts.items()},
            attention=origin.attention,
            capture=origin.capture.model_dump(mode="json"),
            capture_sha256=origin.capture.digest(),
            dtype=origin.capture.dtype,
            prompt_tokens=finished.prompt_tokens,
            generated_tokens=len(finished.token_ids) - finished.prompt_tokens,
            truncated_from=self._truncated_from,
            turns=list(finished.turns),
            segments=finished.segments,
            token_texts=origin.markup.texts(finished.token_ids),
            sampling=sampling.model_dump(mode="json") if sampling else {},
            interventions=edits if replay is None else replay.manifest.interventions,
            seed=sample.seed,
            finish_reason=reason if reason in ("stop", "length", "readout") else None,
            versions=library_versions(_packages_of(origin.structure.identity)),
            created_at=int(time.time()),
            tensors=tensors,
        )
        return manifest, positions

    def _tensors(self, finished: Conversation) -> tuple[dict[str, StoredTensor], list[int] | None]:
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
                found = self._delivered.get(name)
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
                    latents=origin.saes[hook].sae.config.d_sae if hook in origin.saes else None,
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


def _packages_of(identity: ModelIdentity | None) -> tuple[str, ...]:
    """Packages beside transformers that made the weights: peft merges adapters, others unpack."""
    if identity is None:
        return ()
    unpacks = quantization.PACKAGES.get(identity.quantization or "", ("", ""))[0].replace("_", "-")
    return tuple(name for name in ("peft" if identity.adapter else "", unpacks) if name)


@cache
def library_versions(others: tuple[str, ...] = ()) -> dict[str, str]:
    """Versions of the libraries that a session's numbers depend on."""
    found: dict[str, str] = {}
    for name in ("torch", "transformers", "nnsight", *others):
        with suppress(importlib.metadata.PackageNotFoundError):  # some are distributed under other names
            found[name] = importlib.metadata.version(name)
    return {"actograph": __version__, **found}  # deployed source has no metadata


def _tensor_rows(hook: str, chunk: Rows) -> TensorRows:
    undefined = chunk.over is not None and hook.endswith(".kurtosis")  # NaN where a channel does not vary
    if not (undefined or chunk.finite) and (place := _not_finite(chunk)) is not None:
        if chunk.over is not None:
            raise CaptureFailed(f"{hook}: of {chunk.over} rows some are not finite (NaN or infinity)")
        row = chunk.first_row + place if chunk.tokens is None else chunk.tokens[place]
        raise CaptureFailed(f"{hook}: token {row} has a value that is not finite (NaN or infinity)")
    has_scales = DTYPES[chunk.dtype].has_scales
    pieces = [piece[:, :-SCALE_BYTES] for piece in chunk.pieces] if has_scales else chunk.pieces
    return TensorRows(
        name=hook,
        dtype=chunk.dtype,
        shape=(chunk.count, chunk.width),
        first_row=chunk.first_row,
        data=tuple(_bytes_of(piece) for piece in pieces),
        tokens=chunk.tokens,
        scales=tuple(_bytes_of(piece[:, -SCALE_BYTES:]) for piece in chunk.pieces) if has_scales else (),
    )


#: dtypes that numpy tests for finite values
_FLOATS: dict[str, Any] = {"F64": np.float64, "F32": np.float32}
#: others -> integers of the same size, and the bits of an exponent that only infinities and NaN have
_EXPONENTS: dict[str, tuple[Any, int]] = {"F16": (np.int16, 0x7C00), "BF16": (np.int16, 0x7F80)}


def _not_finite(chunk: Rows) -> int | None:
    """The first row with a value that is not finite; None if there is none."""
    before = 0
    for piece in chunk.pieces:
        if DTYPES[chunk.dtype].has_scales:
            bad = ~np.isfinite(np.ascontiguousarray(piece[:, -SCALE_BYTES:]).view("<f4"))
        elif chunk.dtype in _FLOATS:
            bad = ~np.isfinite(piece.view(_FLOATS[chunk.dtype]))
        elif chunk.dtype in _EXPONENTS:
            kind, bits = _EXPONENTS[chunk.dtype]
            bad = (piece.view(kind) & bits) == bits
        else:
            return None
        if bad.any():
            return before + int(bad.any(axis=1).argmax())
        before += len(piece)
    return None


def _bytes_of(piece: NDArray[np.uint8]) -> memoryview:
    """A piece's memory without a copy."""
    whole: Any = np.ascontiguousarray(piece).reshape(-1)
    return memoryview(whole)


def _common_dtype(tensors: Mapping[str, resources.TensorInfo]) -> str:
    names = {info.dtype for info in tensors.values()}
    return names.pop() if len(names) == 1 else "mixed"
