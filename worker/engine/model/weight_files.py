"""The files of a model's weights and configs, and their fingerprint."""

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from actograph import tensor_files

#: the first that exists holds the weights, in the order in which transformers looks for them
WEIGHTS = (
    "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json",
)  # fmt: skip
#: config and weights of an adapter
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
#: part of the name of a decoder layer's weight, with the layer
DECODER_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_CONFIGS = ("config.json", "generation_config.json")
_TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
)  # fmt: skip
_PIECE_BYTES = 64 << 20
_THREADS = 8

#: size, times and inode of a file: they change when somebody writes it
Stamp = tuple[int, int, int, int]

_digests: dict[tuple[str, Stamp], str] = {}


def find(source: str, revision: str | None) -> list[Path]:
    """Weight files and configs of a model on this machine; empty if it has none.

    Args:
        source: folder or Hub id.
    """
    found = [path for name in _CONFIGS if (path := _path(source, name, revision)) is not None]
    weights = first(source, revision)
    if weights is None:
        return []
    found.append(weights)
    if weights.name.endswith(".index.json"):
        shards = shard_names(weights)
        found += [path for name in shards if (path := _path(source, name, revision)) is not None]
    return found


def find_adapter(source: str, revision: str | None) -> list[Path]:
    """Config and weights of an adapter on this machine; empty if it lacks one of them."""
    found = [path for name in ADAPTER if (path := _path(source, name, revision)) is not None]
    return found if len(found) == len(ADAPTER) else []


def outside_layers(weights: Path) -> list[str]:
    """Names of an adapter's tensors that belong to no decoder layer. Raises StoreDamaged."""
    with weights.open("rb") as file:

        def read_at(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        names = tensor_files.read_header(read_at, weights.stat().st_size).tensors
    return [name for name in names if DECODER_LAYER.search(name) is None]


def first(source: str, revision: str | None) -> Path | None:
    """The file that holds a model's weights, or names their shards; None if this machine has none."""
    return next((p for name in WEIGHTS if (p := _path(source, name, revision)) is not None), None)


def shard_names(index: Path) -> list[str]:
    return sorted(set(json.loads(index.read_text())["weight_map"].values()))


def json_files(source: str, revision: str | None) -> list[Path]:
    """Files of a model on this machine that each must hold a JSON object."""
    names = (*_CONFIGS, *_TOKENIZER, *(name for name in WEIGHTS if name.endswith(".json")))
    return [path for name in names if (path := _path(source, name, revision)) is not None]


def stamps(files: Sequence[Path]) -> dict[Path, Stamp]:
    """Each file's stamp."""
    return {path: _stamp(path) for path in files}


def fingerprint(files: Sequence[Path]) -> str:
    """sha256 of these files' names and contents.

    A file is read again only if its stamp has changed since this process last read it.
    """
    found = stamps(files)
    pieces = [
        (path, offset)
        for path, stamp in found.items()
        if (str(path), stamp) not in _digests
        for offset in range(0, max(1, stamp[0]), _PIECE_BYTES)
    ]
    with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1), "fingerprint") as pool:
        digests = list(pool.map(lambda piece: _piece_sha256(*piece), pieces))
    joined: dict[Path, bytes] = {}
    for (path, _), digest in zip(pieces, digests, strict=True):
        joined[path] = joined.get(path, b"") + digest
    for path, combined in joined.items():
        _digests[str(path), found[path]] = hashlib.sha256(combined).hexdigest()
    return _of_names({path.name: _digests[str(path), stamp] for path, stamp in found.items()})


def _of_names(digests: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def _piece_sha256(path: Path, offset: int) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        file.seek(offset)
        left = _PIECE_BYTES
        while left and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    return digest.digest()


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def _path(source: str, name: str, revision: str | None) -> Path | None:
    """A file of the folder or of the local Hub cache, without network access."""
    if Path(source).is_dir():
        path = Path(source) / name
        return path if path.is_file() else None
    found = try_to_load_from_cache(source, name, revision=revision)
    return Path(found) if isinstance(found, str) else None
