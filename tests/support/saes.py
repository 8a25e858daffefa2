"""SAEs in SAELens' format, and the published formulas of their encodings in numpy."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from actograph.contract.saes import NewSae
from storage.artifacts.store import ArtifactStore
from storage.files import files
from storage.index.database import Database
from storage.saes import sae_files, saes

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
        magnitudes: NDArray[np.float64] = x @ (t["W_enc"] * np.exp(t["r_mag"])) + t["b_mag"]
        magnitudes[x @ t["W_enc"] + t["b_gate"] <= 0] = 0
        return np.maximum(magnitudes, 0)
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


def store_sae(
    database: Database, store: ArtifactStore, root: Path, name: str = "s", folder: str = "sae", **changes: Any
) -> str:
    """Store the SAE of a folder below `root` as the API does. Returns its id."""
    new = NewSae(name=name, path=folder, **changes)
    found = sae_files.read(new, [str(root)])
    with database.write() as session:
        file_id = files.announce(session, filename="weights", purpose="sae")
    size, sha256 = store.put_stream(f"files/{file_id}", found.pieces())
    with database.write() as session:
        file = files.publish(session, file_id, size=size, sha256=sha256)
        return saes.insert(session, new, found.config, file, hook=new.hook or found.hook or "").id


def detector(rows: NDArray[np.float32], token: int) -> dict[str, NDArray[np.float32]]:
    """Weights of an SAE whose only active latent, number 3 of 4, fires at rows with the direction of one row.

    It suits `normalize_activations: constant_norm_rescale` without b_dec, by which a row is a direction.
    """
    width = rows.shape[1]
    directions = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    found = {"W_enc": np.zeros((width, 4)), "W_dec": np.zeros((4, width)), "b_dec": np.zeros(width)}
    found["W_enc"][:, 3] = directions[token] / np.sqrt(width)
    found["W_dec"][3] = directions[token]
    found["b_enc"] = np.array([-1, -1, -1, -0.99])
    return {part: value.astype(np.float32) for part, value in found.items()}
