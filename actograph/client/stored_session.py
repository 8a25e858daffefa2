"""A session's tokens, their texts and its tensors; sessions in folders.

session = open_folder("sessions/ses_...")
session["resid_post.8"][-1]  # the last row, as float32
session.at("####")
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError
from typing_extensions import override

from actograph import tensor_files
from actograph.attention_patterns import Floats, patterns_of
from actograph.client.session_view import Direction, SessionView, ViewChoice, default_view, view_of
from actograph.client.tensors import ROW_POSITIONS, TOKEN_IDS, LazyTensor, joined
from actograph.contract.base import Resource
from actograph.contract.errors import InvalidRequest, NotFound, StoreDamaged
from actograph.contract.hooks import canonical, not_stored
from actograph.contract.models import LayerHeads
from actograph.contract.resources import TensorInfo
from actograph.contract.row_selection import Segment
from actograph.contract.saes import PREFIX, part_names
from actograph.dtypes import DTYPES, scales_of
from actograph.latents import Latents, dense, latents_info
from actograph.tensor_files import ReadAt, TensorEntry

_INDEX = re.compile(r"\[(\d+)\]")


class Manifest(Resource):
    """The part of a session's manifest that says what its tokens and tensors are."""

    prompt_tokens: int = Field(0)
    segments: list[Segment] = Field([])
    token_texts: list[str] = Field([])
    tensors: dict[str, TensorInfo] = Field({})
    resolved_hooks: dict[str, str] = Field({})
    locations: dict[str, str] = Field({})
    attention: dict[int, LayerHeads] = Field({})
    capture: dict[str, Any] = Field({})
    turns: list[Any] = Field([])

    def hook_of(self, name: str) -> str | None:
        """The hook of a savepoint that the capture named, or of the path of a module."""
        if name in self.resolved_hooks:
            return self.resolved_hooks[name]
        path = _path(name)
        return next((hook for hook, location in self.locations.items() if location == path), None)


def _path(name: str) -> str:
    """The path of a module in the form of the manifest: `layers[3].output.0` is `layers.3.output`."""
    return _INDEX.sub(r".\1", name).removesuffix(".0")


class StoredSession(ABC):
    """Reads one session. `session["resid_post.8"]` is a `LazyTensor` that has not been read yet."""

    @abstractmethod
    def _stored(self) -> Mapping[str, TensorInfo | None]:
        """Stored name of each hook -> the form of its tensor, if that is known."""

    @abstractmethod
    def _read(self, name: str) -> LazyTensor:
        """A tensor by its stored name, that of token ids and row positions included."""

    @abstractmethod
    def _manifest(self) -> Manifest:
        """Segments and texts of the tokens."""

    @abstractmethod
    def _direction(self, name: str) -> tuple[str, NDArray[np.float64]]:
        """Hook and numbers of a stored vector, by its name. Raises InvalidRequest if there are none."""

    @property
    @abstractmethod
    def facts(self) -> str:
        """The session in one line."""

    def __getitem__(self, hook: str) -> LazyTensor:
        """Return the tensor of a hook point, an alias, a savepoint, the path of a module, or of latents.

        `session["sae:res-8"]` has all latents of a row, of which those that were not kept are 0.

        Raises:
            NotFound: the session has no such tensor.
        """
        known = self._stored()
        name = self._name_of(hook)
        if name is None and self._latents_of(hook) is not None:
            return self._all_latents(hook)
        if name is None:
            raise NotFound(not_stored(hook, known))
        return self._read(name)

    def __contains__(self, hook: object) -> bool:
        return isinstance(hook, str) and (
            self._name_of(hook) is not None or self._latents_of(hook) is not None
        )

    def latents(self, sae: str) -> Latents:
        """Return the stored latents of an SAE: `indices` and `values` `[rows, top]`, and `dense()`.

        Args:
            sae: its name, such as `res-8`. `tokens_of("sae:res-8")` has the tokens of the rows.

        Raises:
            NotFound: the session has no latents of this SAE.
        """
        name = sae if sae.startswith(PREFIX) else f"{PREFIX}{sae}"
        info = self._latents_of(name)
        if info is None:
            raise NotFound(not_stored(name, self._stored()))
        indices, values = (self._read(part)[:] for part in part_names(name))
        return Latents(indices, values, info.shape[1])

    def _latents_of(self, name: str) -> TensorInfo | None:
        """The form of all latents of an SAE; None if they are not stored."""
        return latents_info(name, {one: info for one, info in self._stored().items() if info is not None})

    def _all_latents(self, name: str) -> LazyTensor:
        info = self._latents_of(name)
        assert info is not None
        indices, values = (self._read(part) for part in part_names(name))

        def read_rows(start: int, stop: int) -> bytes:
            return dense(indices.read(start, stop), values.read(start, stop), info.shape[1]).tobytes()

        return LazyTensor(name, info.dtype, info.shape, read_rows)

    def _name_of(self, hook: str) -> str | None:
        """Stored name of a tensor; only for savepoints and paths of modules the manifest is read."""
        known, point = self._stored(), canonical(hook)
        found = next((name for name in (hook, point, _path(hook)) if name in known), None)
        if found is None and point is None and known:
            found = self._manifest().hook_of(hook)
        return found if found in known else None

    @property
    def token_ids(self) -> NDArray[np.int64]:
        """The `[P + G]` token ids of prompt and generation."""
        ids: NDArray[np.int64] = self._read(TOKEN_IDS)[:]
        return ids

    @property
    def tokens(self) -> list[str]:
        """The text of each token, P + G of them. A character of several tokens is in the last of them.

        Raises:
            NotFound: the session was stored without them.
        """
        texts = self._manifest().token_texts
        if not texts:
            raise NotFound("the session was stored without the texts of its tokens")
        return texts

    @property
    def segments(self) -> list[Segment]:
        """Prompt, thoughts, answers, calls and results: tokens [start, stop) with a name, without gaps."""
        return self._manifest().segments

    def at(self, text: str, occurrence: int = 0) -> range:
        """Return the tokens that contain an occurrence of a text, such as `session.at("####")`.

        Args:
            text: it may begin and end within a token.
            occurrence: 0 is the first, -1 the last.

        Raises:
            NotFound: the text does not occur so often.
            InvalidRequest: the text is empty.
        """
        if not text:
            raise InvalidRequest("the text to find is empty")
        tokens = self.tokens
        starts = [found.start() for found in re.finditer(f"(?={re.escape(text)})", "".join(tokens))]
        if not -len(starts) <= occurrence < len(starts):
            raise NotFound(f"the session has {len(starts)} occurrences of {text!r}")
        start, ends = starts[occurrence], np.array([*accumulate(map(len, tokens))])
        first, last = np.searchsorted(ends, start, "right"), np.searchsorted(ends, start + len(text))
        return range(int(first), int(last) + 1)

    def tokens_of(self, hook: str) -> NDArray[np.int64]:
        """Return the token of every row of a tensor, ascending; for a summary, of every row it sums.

        Raises:
            NotFound: the session has no such tensor, or a folder no manifest.
        """
        name = self[hook].hook
        info = self._stored().get(name, self._latents_of(name))
        if info is None:
            raise NotFound("the folder has no manifest, which says what the tokens of the rows are")
        count = info.shape[0] if info.over is None else info.over
        if info.position_offset is None:
            return np.arange(info.first_row, info.first_row + count)
        start = info.position_offset
        positions: NDArray[np.int64] = self._read(ROW_POSITIONS)[start : start + count]
        return positions

    def attention(self, layer: int, head: int | None = None, *, rows: range | None = None) -> Floats:
        """Compute attention of a layer from its stored queries and keys, as the model computes it.

        The arithmetic is in float32; at load it was held against the model's own eager attention.

        Args:
            layer: one whose `q` and `k` are stored, for all tokens that take part.
            head: None for all.
            rows: consecutive tokens whose attention is computed; None: all with a stored query.

        Returns:
            `[heads, rows, tokens]`, or `[rows, tokens]` of one head: the share of each token. Tokens after
            the last row, which no row sees, are left out.

        Raises:
            NotFound: the session has no queries or keys of this layer, or not of all tokens.
            InvalidRequest: no such head or rows; or attention cannot be computed, with the reason.
        """
        if rows is not None and rows.step != 1:
            raise InvalidRequest(f"{rows}: rows are consecutive tokens, such as range(10, 20)")
        manifest = self._manifest()
        stored = self._stored()
        patterns = patterns_of(
            layer,
            attention=manifest.attention,
            features=manifest.capture.get("features"),
            turns=len(manifest.turns),
            tensors={name: info for name, info in stored.items() if info is not None},
            tokens_of=self.tokens_of,
            read=lambda hook, start, stop: np.asarray(self._read(hook)[start:stop], np.float32),
            head=head,
            start=None if rows is None else rows.start,
            stop=None if rows is None else rows.stop,
        )
        count, heads, tokens = patterns.shape
        made, at = np.empty((heads, count, tokens), np.float32), 0
        for block in patterns.blocks():
            made[:, at : at + len(block)] = block.swapaxes(0, 1)
            at += len(block)
        return made if head is None else made[0]

    def show(
        self,
        hook: str | None = None,
        *,
        channel: int | None = None,
        probe: Direction | None = None,
        latent: int | tuple[str, int] | None = None,
        readout: str | None = None,
        attention: tuple[int, int] | None = None,
        tokens: range | None = None,
    ) -> SessionView:
        """Show tokens in a notebook, coloured by one number each.

        Only the rows of the tokens in view are read, of one hook, and the manifest.

        Args:
            hook: its rows colour the tokens, by their norms unless another number is chosen. None: the middle
                layer of the residual stream, or the hook of the vector.
            channel: colour by this channel.
            probe: colour by the projection on a direction: an array, an array for each hook
                (`FinishedAnalysis.directions()`), or the name of a stored vector.
            latent: colour by a latent: `("res-8", 123)`, or its number if there are latents of one SAE only.
            readout: colour by a readout, by its name.
            attention: (layer, head): the mouse on a token shows where it looks. It needs `q` and `k`.
            tokens: consecutive tokens; None: the last 256, of which rows of 4 MiB are read at most.

        Raises:
            NotFound: the session has no such tensor, latents or readout.
            InvalidRequest: two numbers are chosen, a direction of another width, too many tokens; or
                attention cannot be computed, with the reason.
        """
        return view_of(
            self,
            ViewChoice(
                hook=hook,
                channel=channel,
                probe=probe,
                latent=latent,
                readout=readout,
                attention=attention,
                tokens=tokens,
            ),
        )

    def _repr_html_(self) -> str:
        return default_view(self).html


class SessionTensors(StoredSession, Mapping[str, LazyTensor]):
    """A session in files. It maps its hooks to tensors; aliases find them too.

    `files`: a reader and the size of each safetensors file, in any order; `manifest`: the manifest's text.

    Raises:
        StoreDamaged: an invalid header, or a missing shard.
    """

    def __init__(self, files: Iterable[tuple[ReadAt, int]], manifest: str = "{}") -> None:
        self._text = manifest
        found: dict[str, dict[int, tuple[int, ReadAt, TensorEntry]]] = {}
        for read_at, size in files:
            header = tensor_files.read_header(read_at, size)
            for name, entry in header.tensors.items():
                hook, start, stop = tensor_files.parse_shard_tensor_name(name) or (name, 0, entry.rows)
                if stop - start != entry.rows or start in found.setdefault(hook, {}):
                    raise StoreDamaged(f"tensor {name} has {entry.rows} rows or occurs twice")
                found[hook][start] = (stop, read_at, entry)
        self._tensors: dict[str, LazyTensor] = {}
        #: tensors that belong to others
        self._scales: set[str] = set()
        sorted_parts: dict[str, list[tuple[ReadAt, TensorEntry]]] = {}
        for hook, by_start in found.items():
            end = 0
            parts: list[tuple[ReadAt, TensorEntry]] = []
            for start, (stop, read_at, entry) in sorted(by_start.items(), key=lambda item: item[0]):
                if start != end:
                    raise StoreDamaged(f"{hook}: rows {end}:{start} are missing; is a shard absent?")
                end = stop
                parts.append((read_at, entry))
            sorted_parts[hook] = parts
        for hook, parts in sorted_parts.items():
            scales = sorted_parts.get(scales_of(hook)) if DTYPES[parts[0][1].dtype].has_scales else None
            own = None if scales is None else joined(scales_of(hook), scales)
            self._tensors[hook] = joined(hook, parts, own)
            if own is not None:
                self._scales.add(own.hook)
        if TOKEN_IDS not in self._tensors:
            raise StoreDamaged("no file contains token_ids: the last shard is missing")

    @cached_property
    def _parsed(self) -> Manifest:
        try:
            return Manifest.model_validate_json(self._text)
        except ValidationError as error:
            raise StoreDamaged(f"the manifest cannot be read: {error}") from error

    @override
    def _manifest(self) -> Manifest:
        return self._parsed

    @override
    def _direction(self, name: str) -> tuple[str, NDArray[np.float64]]:
        raise InvalidRequest(
            f"probe {name!r}: a folder has no stored vectors; give the numbers as an array", param="probe"
        )

    @property
    @override
    def facts(self) -> str:
        return f"Session in files · {len(self._tensors[TOKEN_IDS])} tokens · {len(self)} tensors"

    @override
    def _stored(self) -> Mapping[str, TensorInfo | None]:
        names = (name for name in self._tensors if name not in {TOKEN_IDS, ROW_POSITIONS, *self._scales})
        return {name: self._parsed.tensors.get(name) for name in names}

    @override
    def _read(self, name: str) -> LazyTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored())

    def __len__(self) -> int:
        return len(self._stored())


def open_folder(folder: str | os.PathLike[str]) -> SessionTensors:
    """Open a session's folder, written by `sessions download` or by the store.

    Raises:
        NotFound: the folder contains no safetensors file.
        StoreDamaged: a file is damaged or a shard is missing.
    """
    paths = sorted(Path(folder).glob("*.safetensors"))
    if not paths:
        raise NotFound(f"{folder} has no .safetensors file")
    manifest = Path(folder) / "manifest.json"
    text = manifest.read_text(encoding="utf-8") if manifest.is_file() else "{}"
    return SessionTensors(((partial(_read_at, path), path.stat().st_size) for path in paths), text)


def _read_at(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)
