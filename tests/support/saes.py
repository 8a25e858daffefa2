"""SAEs in SAELens' format, and the published formulas of their encodings in numpy."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Tensors = Mapping[str, NDArray[Any]]
ARCHITECTURES = ("standard", "topk", "jumprelu", "gated")


def sae_config(
    architecture: str = "standard", *, d_in: int = 8, d_sae: int = 24, **changes: Any
) -> dict[str, Any]:
    """A `cfg.json` as SAELens 6 writes it; a change to None removes a field."""
    own = {"k": 5, "rescale_acts_by_decoder_norm": False} if architecture == "topk" else {}
    metadata = {"sae_lens_version": "6.54.12", "hook_name": "blocks.1.hook_resid_post"}
    cfg = {
        "d_in": d_in, "d_sae": d_sae, "dtype": "float32", "device": "cpu", "apply_b_dec_to_input": True,
        "normalize_activations": "none", "reshape_activations": "none", "metadata": metadata,
        "architecture": architecture, **own, **changes,
    }  # fmt: skip
    return {name: value for name, value in cfg.items() if value is not None}


def sae_tensors(
    architecture: str = "standard", *, d_in: int = 8, d_sae: int = 24, seed: int = 0
) -> dict[str, NDArray[np.float32]]:
    """Random weights, of which about half of the latents are active."""
    random = np.random.default_rng(seed)

    def some(*shape: int, scale: float = 0.3) -> NDArray[np.float32]:
        return (scale * random.standard_normal(shape)).astype(np.float32)

    found = {"W_enc": some(d_in, d_sae), "W_dec": some(d_sae, d_in), "b_dec": some(d_in)}
    if architecture == "gated":
        return found | {"b_gate": some(d_sae), "r_mag": some(d_sae), "b_mag": some(d_sae)}
    found["b_enc"] = some(d_sae)
    if architecture == "jumprelu":
        found["threshold"] = np.abs(some(d_sae, scale=0.2))
    return found


def write_sae(
    folder: Path,
    architecture: str = "standard",
    *,
    d_in: int = 8,
    d_sae: int = 24,
    seed: int = 0,
    tensors: Tensors | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Write an SAE to a folder. Returns its `cfg.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    cfg = sae_config(architecture, d_in=d_in, d_sae=d_sae, **changes)
    weights = tensors or sae_tensors(architecture, d_in=d_in, d_sae=d_sae, seed=seed)
    (folder / "cfg.json").write_text(json.dumps(cfg))
    save_file(dict(weights), folder / "sae_weights.safetensors")
    return cfg


def encoded(rows: NDArray[Any], tensors: Tensors, cfg: Mapping[str, Any]) -> NDArray[np.float64]:
    """All latents [rows, d_sae] of rows, in float64.

    Standard: ReLU((x - b_dec) W_enc + b_enc) (Bricken et al. 2023). Top-k keeps the k largest before the ReLU
    (Gao et al. 2024). JumpReLU keeps what exceeds a threshold (Rajamanoharan et al. 2024b). Gated: a gate
    Heaviside(x W_enc + b_gate), and magnitudes ReLU(x W_enc exp(r_mag) + b_mag) (Rajamanoharan et al. 2024a).
    """
    t = {name: value.astype(np.float64) for name, value in tensors.items()}
    x = rows.astype(np.float64)
    match cfg["normalize_activations"]:
        case "layer_norm":
            x = x - x.mean(-1, keepdims=True)
            x = x / (x.std(-1, ddof=1, keepdims=True) + 1e-5)
        case "constant_norm_rescale":
            x = x * np.sqrt(x.shape[-1]) / np.linalg.norm(x, axis=-1, keepdims=True)
    if cfg["apply_b_dec_to_input"]:
        x = x - t["b_dec"]
    if cfg["architecture"] == "gated":
        gate = x @ t["W_enc"] + t["b_gate"] > 0
        return gate * np.maximum(x @ (t["W_enc"] * np.exp(t["r_mag"])) + t["b_mag"], 0)
    before = x @ t["W_enc"] + t["b_enc"]
    if cfg["architecture"] == "jumprelu":
        return np.maximum(before, 0) * (before > t["threshold"])
    if cfg["architecture"] == "topk":
        if cfg["rescale_acts_by_decoder_norm"]:
            before = before * np.linalg.norm(t["W_dec"], axis=-1)
        kept = np.argsort(-before, axis=-1)[:, : cfg["k"]]
        found = np.zeros_like(before)
        np.put_along_axis(found, kept, np.take_along_axis(before, kept, -1), -1)
        before = found
    return np.maximum(before, 0)
