"""A session in a folder, as `sessions download` writes it: hooks, latents, a readout, queries and keys."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from actograph.contract.models import LayerHeads
from tests.support.tensor_files import encode_tensors

#: tokens of the prompt; the last token has no row
PROMPT = 2
WIDTH, LATENTS = 4, 100
ATTENTION = LayerHeads(heads=2, key_heads=1, width=2, scale=0.5)


def write_session_folder(folder: Path, texts: Sequence[str], *, seed: int = 0) -> Path:
    """Write a session of the tokens with these texts. Token n has the id 100 + n."""
    rows, random = len(texts) - 1, np.random.default_rng(seed)
    values = {
        "resid_post.0": random.normal(size=(rows, WIDTH)).astype("<f4"),
        "resid_post.1": random.normal(size=(rows, WIDTH)).astype("<f4"),
        "resid_post.2": random.normal(size=(rows, WIDTH)).astype("<f4"),
        "mlp_out.1": random.normal(size=(rows - PROMPT, WIDTH)).astype("<f4"),
        "attn_out.1": random.normal(size=(1, WIDTH)).astype("<f4"),
        "readout:mood": random.normal(size=(rows, 1)).astype("<f4"),
        "q.1": random.normal(size=(rows, 4)).astype("<f4"),
        "k.1": random.normal(size=(rows, 2)).astype("<f4"),
        "sae:res.values": random.uniform(1, 2, size=(rows, 2)).astype("<f4"),
    }
    numbers = np.stack([np.arange(rows) % 3, 10 + np.arange(rows)], axis=1).astype("<i4")
    stored = {name: ("F32", array.shape, array.tobytes()) for name, array in values.items()}
    stored["sae:res.indices"] = ("I32", numbers.shape, numbers.tobytes())
    ids = np.arange(100, 100 + len(texts), dtype="<i8")
    data = encode_tensors(stored | {"token_ids": ("I64", ids.shape, ids.tobytes())})
    (folder / "activations.safetensors").write_bytes(data)
    infos = {
        name: {"shape": shape, "dtype": dtype, "first_row": PROMPT if name == "mlp_out.1" else 0}
        for name, (dtype, shape, _) in stored.items()
    }
    infos["attn_out.1"] |= {"summary": "mean", "over": rows}
    for part in ("indices", "values"):
        infos[f"sae:res.{part}"]["latents"] = LATENTS
    manifest = {
        "prompt_tokens": PROMPT,
        "segments": [
            {"name": "prompt", "start": 0, "stop": PROMPT},
            {"name": "answer", "start": PROMPT, "stop": len(texts)},
        ],
        "token_texts": list(texts),
        "tensors": infos,
        "attention": {"1": ATTENTION.model_dump()},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder
