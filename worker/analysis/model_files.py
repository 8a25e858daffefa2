"""Files of the model that sessions were recorded with, on this machine."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer

from actograph.contract.errors import InvalidRequest, ModelChanged, ModelRefused, UnknownModel
from actograph.contract.models import ModelIdentity, ServedModel, short
from worker.engine.model import weight_files


def folder_of(identity: ModelIdentity, served: Sequence[ServedModel]) -> Path:
    """The folder of the files that the model was loaded from. They are read once, to compare their digest.

    Raises:
        UnknownModel: this worker may not read the model.
        ModelRefused: its files are not on this machine, or not safetensors.
        ModelChanged: its files were overwritten.
    """
    model = next((one for one in served if one.name == identity.model), None)
    if model is None:
        names = ", ".join(one.name for one in served) or "none (set ACTOGRAPH_MODEL)"
        raise UnknownModel(f"the analysis worker does not serve model {identity.model!r}; it serves {names}")
    if identity.quantization is not None:
        raise ModelRefused(
            f"{model.name}: its weights are quantised by {identity.quantization}, and an analysis reads "
            "dense ones from the files; record sessions with a checkpoint that is not quantised"
        )
    files = weight_files.find(model.source, identity.revision)
    weights = [path for path in files if path.suffix == ".safetensors"]
    if not weights:
        raise ModelRefused(
            f"{model.name}: the analysis worker has no safetensors files of {model.source!r}; give it the "
            "folder, or the Hub cache, of the workers that load the model"
        )
    digest = weight_files.fingerprint(files)
    if digest != identity.weights_sha256:
        raise ModelChanged(
            f"{model.name}: the files of {model.source!r} have the digest {short(digest)}; the sessions were "
            f"recorded with {short(identity.weights_sha256)}"
        )
    if identity.adapter_sha256 is not None:
        _check_adapter(model, identity)
    return weights[0].parent


def _check_adapter(model: ServedModel, identity: ModelIdentity) -> None:
    """Refuse a model whose adapter changes what an analysis reads: final norm and head of the base's files.

    Raises:
        ModelRefused: with the reason.
        ModelChanged: the adapter was overwritten.
    """
    files = weight_files.find_adapter(model.adapter or "", identity.adapter_revision)
    if not files:
        raise ModelRefused(
            f"{model.name}: the analysis worker has no files of the adapter {identity.adapter!r}; give it "
            "the folder, or the Hub cache, of the workers that load the model"
        )
    digest = weight_files.fingerprint(files)
    if digest != identity.adapter_sha256:
        raise ModelChanged(
            f"{model.name}: the files of the adapter {identity.adapter!r} have the digest {short(digest)}; "
            f"the sessions were recorded with {short(identity.adapter_sha256)}"
        )
    outside = weight_files.outside_layers(files[-1])
    if outside:
        raise ModelRefused(
            f"{model.name}: the adapter changes {outside[0]}, and an analysis reads the base's files. Merge "
            "both with peft, save the result, and serve that folder"
        )


def texts_of(folder: Path) -> Callable[[int], str]:
    """A function from token ids to their texts, which are "" if the model has no `tokenizer.json`."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        return lambda _: ""
    tokenizer = Tokenizer.from_file(str(path))
    return lambda token: str(tokenizer.decode([token], skip_special_tokens=False))


def ids_of(folder: Path) -> Callable[[str], Sequence[int]]:
    """A function from texts to their token ids, without those that begin or end a prompt.

    It raises InvalidRequest if the model has no `tokenizer.json`.
    """

    def ids(text: str) -> Sequence[int]:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise InvalidRequest(f"the model has no tokenizer.json; give the id of the token {text!r}")
        found: Sequence[int] = Tokenizer.from_file(str(path)).encode(text, add_special_tokens=False).ids
        return found

    return ids
