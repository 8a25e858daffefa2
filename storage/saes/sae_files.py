"""The files of an SAE before it is stored: in a folder of the server, or on the Hugging Face Hub."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from actograph import tensor_files
from actograph.contract.errors import InvalidDataset, InvalidRequest, StoreDamaged
from actograph.contract.saes import NewSae, SaeConfig
from storage.files.dataset_sources import allowed_path
from storage.saes.sae_format import CONFIG_NAME, MOST_CONFIG_BYTES, WEIGHTS_NAME, config_of

_CHUNK = 1 << 20


class SaeFiles(NamedTuple):
    """An SAE that was read and checked.

    Attributes:
        hook: that the files name, if they do.
        weights: the file of its tensors.
    """

    config: SaeConfig
    hook: str | None
    weights: Path

    @property
    def size(self) -> int:
        """Bytes of its weights."""
        return self.weights.stat().st_size

    def pieces(self) -> Iterator[bytes]:
        """The bytes of its weights."""
        with self.weights.open("rb") as file:
            while piece := file.read(_CHUNK):
                yield piece


def read(new: NewSae, data_roots: Sequence[str]) -> SaeFiles:
    """Find and check the files of an SAE; those of the Hub are downloaded.

    Raises:
        InvalidRequest: there are no such files, or they are refused, with the reason.
    """
    field = "path" if new.path is not None else "hub"
    try:
        config, weights = (_found(new, name, data_roots) for name in (CONFIG_NAME, WEIGHTS_NAME))
        return _checked(config, weights, new)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, param=field) from error.__cause__


def _found(new: NewSae, name: str, data_roots: Sequence[str]) -> Path:
    if new.path is None:
        return _downloaded(new, name)
    try:
        return allowed_path(f"{new.path.rstrip('/')}/{name}", data_roots)
    except InvalidDataset as error:
        raise InvalidRequest(error.message) from None


def _downloaded(new: NewSae, name: str) -> Path:
    """A file of a repository of the Hub, from its cache if it is there. Raises InvalidRequest."""
    from huggingface_hub import hf_hub_download  # takes a second

    assert new.hub is not None
    try:
        return Path(hf_hub_download(new.hub, name, subfolder=new.folder, revision=new.revision))
    except Exception as error:  # huggingface_hub raises many kinds, and those of its HTTP library
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise InvalidRequest(f"{new.source}/{name} cannot be downloaded from the Hub: {first}") from error


def _checked(config: Path, weights: Path, new: NewSae) -> SaeFiles:
    if config.stat().st_size > MOST_CONFIG_BYTES:
        raise InvalidRequest(f"{CONFIG_NAME} is larger than {MOST_CONFIG_BYTES:,} bytes")
    try:
        cfg = json.loads(config.read_bytes())
    except ValueError as error:
        raise InvalidRequest(f"{CONFIG_NAME} is not valid JSON: {error}") from None
    if not isinstance(cfg, dict):
        raise InvalidRequest(f"{CONFIG_NAME} is not a JSON object")
    with weights.open("rb") as file:

        def read_at(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        try:
            header = tensor_files.read_header(read_at, weights.stat().st_size)
        except StoreDamaged as error:
            raise InvalidRequest(f"{WEIGHTS_NAME}: {error.message}") from None
    found, hook = config_of(cfg, header, hub=new.hub, center_rows=new.center_rows)
    return SaeFiles(found, hook, weights)
