"""LoRA adapters in peft's format, merged into the weights of their base at load.

A merged model has the modules of its base, so hooks, packed passes and edits need to know nothing of it. Only
safetensors are read: pickled adapters are refused, as no code from a repository is ever run.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from tokenizers import Tokenizer
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from actograph.contract.errors import ModelRefused, PackageMissing, package
from actograph.contract.models import names_folder
from worker.engine.model import weight_files

logger = logging.getLogger(__name__)

_TEMPLATES = ("chat_template.jinja", "tokenizer_config.json")
_FILES = (*weight_files.ADAPTER, "tokenizer.json", *_TEMPLATES)
#: largest difference between merged and unmerged logits, as a share of the largest: a merge rounds weights
_TOLERANCE = {torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 0.1}
#: tokens of the text that compares them
_TOKENS = 24
#: the one adapter of a model
_NAME = "default"
_MOST_NAMES = 3


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """An adapter on this machine.

    Attributes:
        folder: of its files.
        revision: commit of the Hub; None for a folder.
    """

    source: str
    folder: Path
    revision: str | None
    config: Mapping[str, Any]


def find(name: str, source: str, revision: str | None, *, base: str) -> Adapter:
    """Find an adapter's files, downloaded from the Hub if need be, and check that they suit their base.

    Args:
        name: of the served model.
        base: folder or Hub id of its weights.

    Raises:
        ModelRefused: files are missing, or it cannot be merged into this base; with the reason.
    """
    folder, commit = Path(source), None
    if not folder.is_dir():
        if names_folder(source):
            raise ModelRefused(f"{name}: no folder {source!r} of an adapter")
        folder, commit = _downloaded(name, source, revision)
    config_file, weights = (folder / file for file in weight_files.ADAPTER)
    if not config_file.is_file():
        raise ModelRefused(
            f"{name}: {source!r} has no {config_file.name}, so it is no adapter of peft. Give the folder or "
            "Hub id that peft's save_pretrained wrote"
        )
    if not weights.is_file():
        pickled = (folder / "adapter_model.bin").is_file() or commit is not None
        reason = ", and pickled weights (.bin) are never read" if pickled else ""
        raise ModelRefused(
            f"{name}: {source!r} has no {weights.name}{reason}. Save the adapter with "
            "save_pretrained(folder, safe_serialization=True)"
        )
    try:
        config = json.loads(config_file.read_text())
    except ValueError as error:
        raise ModelRefused(f"{name}: {config_file.name} is damaged: it is no JSON ({error})") from error
    if not isinstance(config, dict):
        raise ModelRefused(f"{name}: {config_file.name} is damaged: it is no JSON object")
    _check_kind(name, config)
    _check_base(name, config, base)
    return Adapter(source=source, folder=folder, revision=commit, config=config)


def _downloaded(name: str, source: str, revision: str | None) -> tuple[Path, str]:
    try:
        folder = Path(snapshot_download(source, revision=revision, allow_patterns=list(_FILES)))
    except Exception as error:  # huggingface_hub raises many kinds
        raise ModelRefused(
            f"{name}: the adapter {source!r} cannot be read ({_said(error)}). Give a folder, or a Hub "
            "id that this machine can reach"
        ) from error
    return folder, folder.name


def _check_kind(name: str, config: Mapping[str, Any]) -> None:
    """Refuse adapters that no merge can express. Raises ModelRefused."""
    kind, task = config.get("peft_type"), config.get("task_type")
    if kind != "LORA":
        raise ModelRefused(f"{name}: an adapter of the type {kind}; only LoRA is merged")
    if task not in (None, "CAUSAL_LM"):
        raise ModelRefused(f"{name}: an adapter for {task}; only language models (CAUSAL_LM) are served")
    for field, reason in (
        ("alora_invocation_tokens", "acts from an invocation on alone, which a merge cannot express"),
        ("layer_replication", "repeats layers of the base, so its config would be wrong"),
        ("megatron_config", "was made for Megatron's parallel layers"),
    ):
        if config.get(field):
            raise ModelRefused(f"{name}: the adapter has {field}: it {reason}. Serve a merged checkpoint")


def _check_base(name: str, config: Mapping[str, Any], base: str) -> None:
    """Compare the base that the adapter names. Folders cannot be compared: a log line names both.

    Raises:
        ModelRefused: it was trained on another model of the Hub.
    """
    trained_on = config.get("base_model_name_or_path") or ""
    is_folder = Path(trained_on).is_dir() and Path(base).is_dir()
    if trained_on == base or (is_folder and Path(trained_on).samefile(base)):
        return
    ids = [one for one in (trained_on, base) if _is_hub_id(one)]
    if len(ids) == 2 and len({one.rpartition("/")[2].lower() for one in ids}) == 2:
        raise ModelRefused(
            f"{name}: the adapter was trained on {trained_on}, not on {base}. Serve that base; if both have "
            "the same weights, change base_model_name_or_path in adapter_config.json"
        )
    logger.warning("%s: the adapter names the base %r, and is merged into %r", name, trained_on, base)


def _is_hub_id(source: str) -> bool:
    return source.count("/") == 1 and not names_folder(source) and not Path(source).is_dir()


def require_peft() -> Any:
    """Import peft. Raises ModelRefused if it is not installed."""
    try:
        return package("peft", "a LoRA adapter")
    except PackageMissing as error:
        raise ModelRefused("a LoRA adapter needs peft: pip install 'actograph[adapters]'") from error


@torch.no_grad()
def merge(
    hf: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, adapter: Adapter, name: str
) -> PreTrainedModel:
    """Merge an adapter into a model, whose modules are those of the base afterwards.

    The logits of a short text are compared before and after the merge.

    Raises:
        ModelRefused: its tensors do not fit the base, or the merged model computes something else.
    """
    peft = require_peft()
    _check_tokenizer(name, adapter, tokenizer)
    module: Any = hf
    dtype, device = module.dtype, module.device
    ids = _text(module, device)
    before = _logits(module, ids)
    try:
        config = peft.LoraConfig.from_pretrained(str(adapter.folder))
        config.inference_mode = True
        model = peft.PeftModel(module, config, adapter_name=_NAME)
        mapping = getattr(module, "_checkpoint_conversion_mapping", {})
        loaded = model.load_adapter(str(adapter.folder), _NAME, torch_device=str(device), key_mapping=mapping)
        _check_tensors(name, adapter, loaded.missing_keys, loaded.unexpected_keys)
        model.eval()
        unmerged = _logits(module, ids)
        merged: Any = model.merge_and_unload(safe_merge=True)
    except (ValueError, RuntimeError, KeyError, TypeError, NotImplementedError, ImportError) as error:
        raise ModelRefused(
            f"{name}: the adapter {adapter.source!r} does not fit the base ({_said(error)})"
        ) from error
    for parameter in merged.parameters():
        if parameter.is_floating_point() and parameter.dtype != dtype:
            parameter.data = parameter.data.to(dtype)
    after = _logits(merged, ids)
    apart, size = float((after - unmerged).abs().max()), float(unmerged.abs().max())
    if not apart <= _TOLERANCE.get(dtype, 1e-4) * max(size, 1.0):
        raise ModelRefused(
            f"{name}: the merged model's logits differ by {apart:.1e} from those of base and adapter "
            f"(largest {size:.1e}), so the adapter cannot be merged"
        )
    if torch.equal(after, before):
        logger.warning("%s: the adapter %r changes nothing", name, adapter.source)
    logger.info("%s: the adapter %r is merged; logits differ by %.1e", name, adapter.source, apart)
    result: PreTrainedModel = merged
    return result


def _text(module: Any, device: torch.device) -> torch.Tensor:
    size = int(module.get_input_embeddings().weight.shape[0])
    numbers = torch.arange(1, _TOKENS + 1) * 7919 % size
    return numbers[None].to(device)


def _logits(module: Any, ids: torch.Tensor) -> torch.Tensor:
    logits: torch.Tensor = module(input_ids=ids, use_cache=False).logits
    return logits.float()


def _check_tensors(name: str, adapter: Adapter, missing: Sequence[str], unexpected: Sequence[str]) -> None:
    """Refuse an adapter of which a part would be left out. Raises ModelRefused."""
    for keys, reason in (
        (missing, "lacks tensors that its config names"),
        (unexpected, "has tensors for modules that the base does not have"),
    ):
        if keys:
            raise ModelRefused(f"{name}: the adapter {adapter.source!r} {reason}: {_some(keys)}")


def _check_tokenizer(name: str, adapter: Adapter, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse an adapter with tokens of its own: texts are tokenized as the base does it.

    Raises:
        ModelRefused: with some of these tokens.
    """
    path = adapter.folder / "tokenizer.json"
    if path.is_file():
        try:
            own = Tokenizer.from_file(str(path)).get_vocab()
        except Exception as error:  # Rust's tokenizers raise no narrower class
            raise ModelRefused(f"{name}: the adapter's {path.name} is damaged ({error})") from error
        known = tokenizer.get_vocab()
        new = sorted(token for token, number in own.items() if known.get(token) != number)
        if new:
            raise ModelRefused(
                f"{name}: the adapter's tokenizer has tokens that the base's has not ({_some(new)}). Merge "
                "both with peft, save model and tokenizer in one folder, and serve that"
            )
    theirs = _template(adapter.folder)
    if theirs is not None and theirs != tokenizer.chat_template:
        logger.warning("%s: the adapter has a chat template of its own; the base's is used", name)


def _template(folder: Path) -> str | None:
    template, config = (folder / file for file in _TEMPLATES)
    if template.is_file():
        return template.read_text()
    found = json.loads(config.read_text()).get("chat_template") if config.is_file() else None
    return found if isinstance(found, str) else None


def _some(keys: Sequence[str]) -> str:
    rest = len(keys) - _MOST_NAMES
    return ", ".join(keys[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")


def _said(error: BaseException) -> str:
    """The first two lines of an error: torch's first one is a heading."""
    lines = [line.strip() for line in str(error).strip().splitlines()]
    return " ".join(lines[:2]) or type(error).__name__
