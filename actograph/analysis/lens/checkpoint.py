"""Final norm and unembedding of a checkpoint, read from its safetensors files without torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.contract.errors import InvalidRequest
from actograph.tensor_files import TensorFileHeader, read_header, row_range, value_array

Array = NDArray[Any]
_NORMS = ("model.norm", "transformer.ln_f", "gpt_neox.final_layer_norm", "model.final_layernorm")
_UNEMBEDDINGS = ("lm_head.weight", "embed_out.weight")
_EMBEDDINGS = ("model.embed_tokens.weight", "transformer.wte.weight", "gpt_neox.embed_in.weight")
#: families whose norm multiplies by 1 + weight
_SHIFTED = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text"})


@dataclass(frozen=True)
class _Tensor:
    path: Path
    header: TensorFileHeader
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.header.entry(self.name).shape

    def rows(self, start: int, stop: int) -> Array:
        """Read rows [start, stop) of the first axis as numbers."""
        entry = self.header.entry(self.name)
        offset, length = row_range(self.header, self.name, start, stop)
        with self.path.open("rb") as file:
            file.seek(offset)
            data = file.read(length)
        return value_array(entry.dtype, (stop - start, *entry.shape[1:]), data).astype(np.float32)


class Checkpoint:
    """A folder with `config.json` and safetensors files."""

    def __init__(self, folder: Path, files: Sequence[Path] | None = None) -> None:
        """Read config and headers.

        Args:
            files: the safetensors files to read; None reads all in the folder.

        Raises:
            InvalidRequest: the folder has no config or no safetensors files.
        """
        self.folder = folder
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"{folder}: config.json cannot be read: {error}") from None
        self.config: dict[str, Any] = config.get("text_config") or config
        self.tensors: dict[str, _Tensor] = {}
        for path in sorted(folder.glob("*.safetensors")) if files is None else files:
            header = _header(path)
            self.tensors |= {name: _Tensor(path, header, name) for name in header.tensors}
        if not self.tensors:
            raise InvalidRequest(f"{folder} has no .safetensors files")

    @cached_property
    def unembedding(self) -> _Tensor:
        """Unembedding, [vocabulary, width]; the embedding if the two are tied."""
        names = _EMBEDDINGS if self.config.get("tie_word_embeddings") else (*_UNEMBEDDINGS, *_EMBEDDINGS)
        for name in names:
            if name in self.tensors:
                return self.tensors[name]
        raise InvalidRequest(f"{self.folder} has no unembedding; looked for: {', '.join(names)}")

    @cached_property
    def norm(self) -> "FinalNorm":
        """The norm before the unembedding."""
        name = next((name for name in _NORMS if f"{name}.weight" in self.tensors), None)
        if name is None:
            raise InvalidRequest(f"{self.folder} has no final norm; looked for: {', '.join(_NORMS)}")
        weight = self._vector(f"{name}.weight")
        bias = f"{name}.bias"
        if self.config.get("model_type") in _SHIFTED:
            weight = weight + 1
        rms = "rms_norm_eps" in self.config
        epsilon = next(
            (
                float(self.config[key])
                for key in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
                if key in self.config
            ),
            1e-5,
        )
        shift = self._vector(bias) if bias in self.tensors else np.zeros_like(weight)
        return FinalNorm(weight=weight, bias=shift, epsilon=epsilon, centred=not rms)

    @cached_property
    def logit_cap(self) -> float | None:
        """Bound of the logits by tanh, as Gemma 2 has it."""
        cap = self.config.get("final_logit_softcapping")
        return None if cap is None else float(cap)

    @cached_property
    def logit_scale(self) -> float:
        """Factor of the logits, as Cohere and Granite have it."""
        scale: float = self.config.get("logit_scale", 1) / self.config.get("logits_scaling", 1)
        return scale

    @cached_property
    def pieces(self) -> dict[int, str]:
        """Token texts by id, as `tokenizer.json` spells them; empty without that file."""
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            return {}
        tokenizer = json.loads(path.read_text(encoding="utf-8"))
        vocabulary = tokenizer.get("model", {}).get("vocab", {})
        if isinstance(vocabulary, list):  # unigram models: pairs of a piece and its score
            found = {number: str(pair[0]) for number, pair in enumerate(vocabulary)}
        else:
            found = {int(number): str(piece) for piece, number in vocabulary.items()}
        added = {int(one["id"]): str(one["content"]) for one in tokenizer.get("added_tokens", [])}
        return found | added

    def _vector(self, name: str) -> NDArray[np.float64]:
        tensor = self.tensors[name]
        return tensor.rows(0, tensor.shape[0]).astype(np.float64)


@dataclass(frozen=True)
class FinalNorm:
    """RMS norm, or layer norm if `centred`."""

    weight: NDArray[np.float64]
    bias: NDArray[np.float64]
    epsilon: float
    centred: bool

    def scale(self, rows: Array) -> NDArray[np.float64]:
        """Divisor of each row, [n, 1]."""
        values = self._centre(rows)
        return np.asarray(np.sqrt(np.square(values).mean(axis=-1, keepdims=True) + self.epsilon))

    def linear(self, parts: Array, scale: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map parts of rows at the scale of the whole rows; the bias is left out."""
        return np.asarray(self._centre(parts) / scale * self.weight)

    def apply(self, rows: Array) -> NDArray[np.float64]:
        """Normalise rows, [n, width]."""
        return self.linear(rows, self.scale(rows)) + self.bias

    def _centre(self, rows: Array) -> NDArray[np.float64]:
        values = rows.astype(np.float64)
        return values - values.mean(axis=-1, keepdims=True) if self.centred else values


def _header(path: Path) -> TensorFileHeader:
    with path.open("rb") as file:

        def read_at(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        return read_header(read_at, path.stat().st_size)
