"""Final norm and unembedding of a checkpoint, read from its safetensors files without torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.analysis.files import StoredArray, stored_arrays
from actograph.contract.errors import InvalidRequest

Array = NDArray[Any]
_NORMS = ("model.norm", "transformer.ln_f", "gpt_neox.final_layer_norm", "model.final_layernorm")
_UNEMBEDDINGS = ("lm_head.weight", "embed_out.weight")
_EMBEDDINGS = ("model.embed_tokens.weight", "transformer.wte.weight", "gpt_neox.embed_in.weight")
#: families whose norm multiplies by 1 + weight
_SHIFTED = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text"})


class Checkpoint:
    """A folder with `config.json` and safetensors files."""

    def __init__(self, folder: Path, files: Sequence[Path] = ()) -> None:
        """Read config and headers.

        Args:
            files: safetensors files to read; by default all of the folder.

        Raises:
            InvalidRequest: the folder has no config or no safetensors files.
        """
        self.folder = folder
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InvalidRequest(f"{folder}: config.json cannot be read: {error}") from None
        self.config: dict[str, Any] = config.get("text_config") or config
        self.tensors: dict[str, StoredArray] = {}
        for path in files or sorted(folder.glob("*.safetensors")):
            self.tensors |= stored_arrays(path)
        if not self.tensors:
            raise InvalidRequest(f"{folder} has no .safetensors files")

    @property
    def layers(self) -> int:
        """Number of layers. Raises InvalidRequest if the config has none."""
        for key in ("num_hidden_layers", "n_layer"):
            if key in self.config:
                return int(self.config[key])
        raise InvalidRequest(f"{self.folder}: config.json has no number of layers")

    @cached_property
    def unembedding(self) -> StoredArray:
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

    def _vector(self, name: str) -> NDArray[np.float64]:
        return self.tensors[name].read().astype(np.float64)


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
