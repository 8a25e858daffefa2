"""Rows of a job as stacked arrays `[batch, sequence, width]` in one file, for programs that take such arrays.

The model reads each text alone; packing is a layout of the file. Packed texts follow each other in a sequence
like blocks on a diagonal, and `segment_ids` tells them apart.
"""

import json
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from actograph import tensor_files
from actograph.client.sessions import SessionHandle
from actograph.client.stored_session import SessionTensors, open_folder
from actograph.contract.errors import InvalidRequest, NotFound
from actograph.contract.row_selection import consecutive
from actograph.progress import Update
from actograph.tensor_files import Array

#: names that the field's own scripts give to the inputs of a layer's two blocks
_NAMES = {"attn_in": "layer_{}_ln_attn", "mlp_in": "layer_{}_ln_mlp"}
_INTEGERS = ("token_ids", "segment_ids")


class RowSpan(NamedTuple):
    """Rows [start, stop) of a text, from place `at` of a sequence on."""

    text: int
    start: int
    stop: int
    at: int


def packed(lengths: Sequence[int], size: int) -> list[list[RowSpan]]:
    """The pieces of each sequence of `size` tokens.

    A text that does not fit into the rest of a sequence begins the next one; a longer one takes several.
    """
    sequences: list[list[RowSpan]] = [[]]
    at = 0
    for text, length in enumerate(lengths):
        for start in range(0, length, size):
            stop = min(start + size, length)
            if at + stop - start > size:
                sequences.append([])
                at = 0
            sequences[-1].append(RowSpan(text, start, stop, at))
            at += stop - start
    return sequences


def name_of(hook: str) -> str:
    """The name of a hook's array: `layer_3_ln_attn` for `attn_in.3`, else the hook's own."""
    point, _, layer = hook.rpartition(".")
    return _NAMES[point].format(layer) if point in _NAMES else hook


def write(
    sessions: Sequence[SessionHandle],
    path: Path,
    *,
    hooks: Sequence[str] = (),
    sequence: int | None = None,
    on_progress: Update,
) -> Path:
    """Write the arrays of sessions to a .safetensors or .npz file; see `JobHandle.write_arrays`."""
    if path.suffix not in (".safetensors", ".npz"):
        raise InvalidRequest(f"{path}: the name must end in .safetensors or .npz")
    if not sessions:
        raise NotFound("the job has no sessions")
    stack = _ArrayPlan(sessions, hooks or list(sessions[0].hooks), sequence)
    aside = path.with_name(f"{path.name}.part")
    with tempfile.TemporaryDirectory(prefix="arrays-", dir=path.parent) as folder:
        tensors = []
        for number, session in enumerate(sessions):
            on_progress("sessions", number, len(sessions))
            tensors.append(open_folder(session.download(folder)))
        on_progress("sessions", len(sessions), len(sessions))
        try:
            with aside.open("wb") as out:
                (_write_npz if path.suffix == ".npz" else _write_safetensors)(out, stack, tensors)
            return aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)


class _ArrayPlan:
    """Names, shapes and places of the arrays.

    Raises:
        InvalidRequest: rows do not fit into one array.
        NotFound: a session lacks a hook.
    """

    def __init__(self, sessions: Sequence[SessionHandle], hooks: Sequence[str], size: int | None) -> None:
        self._sessions = sessions
        #: name -> stored name of the hook
        self.hooks = {name_of(tensor.hook): tensor.hook for tensor in map(sessions[0].__getitem__, hooks)}
        #: name -> dtype of safetensors, and what follows [batch, sequence]
        self.forms: dict[str, tuple[str, tuple[int, ...]]] = dict.fromkeys(_INTEGERS, ("I64", ()))
        for name, hook in self.hooks.items():
            forms = {(tensor.read_dtype, tensor.shape[1:]) for tensor in (one[hook] for one in sessions)}
            if len(forms) > 1:
                raise InvalidRequest(f"the sessions store {hook} in several dtypes or widths")
            self.forms[name] = forms.pop()
        #: token of every row of each session
        self._tokens = [self._tokens_of(session) for session in sessions]
        lengths = list(map(len, self._tokens))
        unpacked = [[RowSpan(text, 0, length, 0)] for text, length in enumerate(lengths)]
        self._sequences = packed(lengths, size) if size else unpacked
        self.shape = (len(self._sequences), size or max(lengths))

    def _tokens_of(self, session: SessionHandle) -> Array:
        hooks = list(self.hooks.values())
        reduced = [hook for hook in hooks if session.hooks[hook].over is not None]
        if reduced:
            raise InvalidRequest(f"{reduced[0]} is reduced to one row per text; it has no sequence")
        tokens = session.tokens_of(hooks[0])
        for hook in hooks[1:]:
            if not np.array_equal(session.tokens_of(hook), tokens):
                raise InvalidRequest(f"session {session.id} has {hook} and {hooks[0]} of other tokens")
        return tokens

    @property
    def metadata(self) -> Mapping[str, str]:
        layers = {hook.rpartition(".")[2] for hook in self.hooks.values()}
        return {
            "model": self._sessions[0].model,
            "texts": str(len(self._sessions)),
            "layers_extracted": json.dumps(sorted(int(layer) for layer in layers if layer.isdecimal())),
            "hooks": json.dumps(self.hooks),
            "session_ids": json.dumps([session.id for session in self._sessions]),
            "positions": json.dumps([list(consecutive(tokens.tolist())) for tokens in self._tokens]),
        }

    def blocks(self, name: str, tensors: Sequence[SessionTensors]) -> Iterator[Array]:
        """The array, a sequence at a time, [sequence, width]; 0 where no text is. bfloat16 as its bits."""
        dtype, width = self.forms[name]
        for pieces in self._sequences:
            block = np.zeros((self.shape[1], *width), tensor_files.NUMPY_DTYPES[dtype])
            for piece in pieces:
                place = slice(piece.at, piece.at + piece.stop - piece.start)
                block[place] = self._rows(name, piece, tensors[piece.text])
            yield block

    def _rows(self, name: str, piece: RowSpan, tensors: SessionTensors) -> Any:
        if name == "segment_ids":
            return piece.text + 1
        if name == "token_ids":
            return tensors.token_ids[self._tokens[piece.text][piece.start : piece.stop]]
        tensor = tensors[self.hooks[name]]
        shape = (piece.stop - piece.start, *tensor.shape[1:])
        data = tensor.read_bytes(piece.start, piece.stop)
        return tensor_files.raw_array(tensor.read_dtype, shape, data)


def _write_safetensors(out: IO[bytes], stack: _ArrayPlan, tensors: Sequence[SessionTensors]) -> None:
    entries = [(name, dtype, (*stack.shape, *width)) for name, (dtype, width) in stack.forms.items()]
    out.write(tensor_files.encode_header(entries, stack.metadata))
    for name in stack.forms:
        for block in stack.blocks(name, tensors):
            out.write(block.tobytes())


def _write_npz(out: IO[bytes], stack: _ArrayPlan, tensors: Sequence[SessionTensors]) -> None:
    """Without compression, which floats hardly take; numpy has no bfloat16, which becomes float32."""
    with zipfile.ZipFile(out, "w") as archive:
        for name, (dtype, width) in stack.forms.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(tensor_files.npy_header(dtype, (*stack.shape, *width)))
                for block in stack.blocks(name, tensors):
                    member.write(tensor_files.value_array(dtype, block.shape, block.tobytes()).tobytes())
        with archive.open("metadata.npy", "w") as member:
            np.lib.format.write_array(cast(Any, member), np.array(json.dumps(dict(stack.metadata))))
