"""The end of a model, from the last decoder layer to the logits, as the architecture itself computes it.

The model is built by transformers from its files, with its own final norm, head, biases, factors and caps.
Only the decoder layers are left out: a layer that returns the given rows stands in for the last one. Needs
torch and transformers, which are imported when a checkpoint is opened.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.contract.errors import InvalidRequest, package

Array = NDArray[Any]
Floats = NDArray[np.float64]
#: rows of the head that are read at once
BLOCK = 16_384
#: root mean square of rows that are so small that a norm's epsilon alone sets its scale
_SMALL = 1e-9
#: largest relative part of a normed row that a linear map may leave unexplained
_ROUNDING = 1e-4


class Checkpoint:
    """The end of the model in a folder with `config.json` and safetensors files."""

    def __init__(self, folder: Path) -> None:
        """Load everything but the decoder layers. The head keeps its dtype and is read from the file.

        Raises:
            InvalidRequest: the folder is no checkpoint of a model that transformers knows, or the model does
                not compute its logits from the rows of its last layer alone.
            PackageMissing: torch or transformers is not installed.
        """
        self.folder = folder
        _check_files(folder)
        self._torch = package("torch", "the logit lens")
        package("transformers", "the logit lens")
        try:
            with _quiet(), self._torch.no_grad():
                self._model, self._decoder_layers = _without_layers(folder)
                self._head = _replace_head(self._model)
                self._use_doubles()
                self.layers: int = len(self._decoder_layers)
                self.vocabulary: int = self._head.shape[0]
                self.width: int = self._head.shape[1]
                self._verify()
        except InvalidRequest:
            raise
        except Exception as error:
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            if "custom code" in reason:
                reason = "it contains Python code, and code from a repository is never run"
            raise InvalidRequest(
                f"{folder}: the end of the model cannot be run by itself: {reason}"
            ) from error

    def logits(self, rows: Array, start: int = 0, stop: int | None = None) -> NDArray[np.float32]:
        """Logits of the tokens [start, stop), [n, stop - start], of rows [n, width] of the last layer.

        Raises:
            InvalidRequest: the width is not the model's.
        """
        self._check_rows(rows)
        found: NDArray[np.float32] = self._run(rows, slice(start, stop)).float().numpy()
        return found

    def normed(self, rows: Array) -> Floats:
        """Input of the head for rows [n, width] of the last layer: the rows after the final norm."""
        self._check_rows(rows)
        self._run(rows, slice(0, 1))
        found: Floats = self._head.seen[:, 0].double().numpy()
        return found

    def linear_parts(self, parts: Array) -> Floats:
        """Map the parts of rows as the norm maps their sum, without its bias, [components, n, width].

        A norm is a linear map divided by a scale that depends on the row. Rows that are tiny beside the
        norm's epsilon have a constant scale, so the norm of tiny multiples of the parts is the linear map.
        Its factor is that by which the map of the sum becomes the sum's own norm.

        Raises:
            InvalidRequest: the width is not the model's, or the norm is no such map.
        """
        whole = parts.astype(np.float64).sum(axis=0)
        bias = self.normed(np.zeros((1, self.width)))[0]
        due = self.normed(whole) - bias
        mapped = self._linear(whole, bias)
        lengths = np.square(mapped).sum(axis=1, keepdims=True)
        products = (mapped * due).sum(axis=1, keepdims=True)
        factors = np.divide(products, lengths, out=np.zeros_like(lengths), where=lengths > 0)
        unexplained = np.abs(mapped * factors - due).max(initial=0)
        if not unexplained <= _ROUNDING * np.abs(due).max(initial=0):
            raise InvalidRequest(f"{self.folder}: the final norm is not linear at a fixed scale")
        return np.stack([self._linear(part.astype(np.float64), bias) * factors for part in parts])

    def unembedded(self, tokens: Array) -> Floats:
        """Rows of the head for token ids, [n, width], times the model's factor of the logits.

        Raises:
            InvalidRequest: a token is not in the vocabulary.
        """
        ids = self._checked_tokens(tokens)
        return np.asarray(self._head.stored[ids].double().numpy() * self._factor())

    def constants(self, tokens: Array) -> Floats:
        """The part of each token's logit that depends on no row, [n]: by the biases of norm and head."""
        ids = self._checked_tokens(tokens)
        bias = self.normed(np.zeros((1, self.width)))[0]
        found = self._head.stored[ids].double().numpy() @ bias
        if self._head.bias is not None:
            found = found + self._head.bias[ids].double().numpy()
        return np.asarray(found * self._factor())

    def _linear(self, rows: Floats, bias: Floats) -> Floats:
        """The norm's linear map of rows, up to one factor for all rows."""
        sizes = np.sqrt(np.square(rows).mean(axis=1, keepdims=True))
        small = np.divide(_SMALL, sizes, out=np.zeros_like(sizes), where=sizes > 0)
        mapped = np.divide(self.normed(rows * small) - bias, small, out=np.zeros_like(rows), where=small > 0)
        return np.asarray(mapped)

    def _factor(self) -> float:
        """The model's factor of the logits, by the logits of a tiny output of the head."""
        tiny = 1e-4
        return float(self._after_head(np.full((1, 1), tiny))[0, 0]) / tiny

    def _after_head(self, outputs: Array) -> Floats:
        """Logits of outputs of the head, [n, any number]."""
        given = self._torch.from_numpy(outputs.astype(np.float64))[:, None]
        found: Floats = self._run(np.zeros((len(outputs), self.width)), slice(0, 1), given).double().numpy()
        return found

    def _run(self, rows: Array, block: slice, given: Any = None) -> Any:
        """Run the end of the model: the logits of a block of tokens, [n, tokens].

        Each row is a sequence of one token. The embedding and all layers but the last return NaN, so that
        logits that depend on them are NaN.

        Args:
            given: outputs of the head instead of its own.
        """
        torch = self._torch
        rows = np.ascontiguousarray(rows, np.float64)
        shape = (len(rows), 1, self.width)
        for number, layer in enumerate(self._decoder_layers):
            is_last = number == len(self._decoder_layers) - 1
            layer.returned = torch.from_numpy(rows.reshape(shape)) if is_last else None
        self._head.block, self._head.given = block, given
        with torch.no_grad():
            nothing = torch.tensor(float("nan"), dtype=torch.float64).expand(shape)
            found = self._model(inputs_embeds=nothing, use_cache=False).logits
        tokens = self._head.returned.shape[-1]
        if tuple(found.shape) != (len(rows), 1, tokens):
            raise InvalidRequest(f"{self.folder}: the model's logits have the shape {list(found.shape)}")
        return found[:, 0]

    def _use_doubles(self) -> None:
        """Compute everything but the head's product in float64; embeddings are not read."""
        torch = self._torch
        for module in self._model.get_decoder().modules():
            if not isinstance(module, torch.nn.Embedding):
                for parameter in module.parameters(recurse=False):
                    parameter.data = parameter.data.double()

    def _verify(self) -> None:
        """Check that the logits are those of the given rows alone, token by token.

        Raises:
            InvalidRequest: they are not.
        """
        rows = np.random.default_rng(0).normal(size=(3, self.width))
        errors: list[Exception] = []
        for as_tuple in (False, True):
            try:
                found = self._first_logits(rows, as_tuple=as_tuple)
                break
            except Exception as error:  # noqa: BLE001 (raised if the model takes neither form)
                errors.append(error)
        else:
            raise errors[0]
        reason = None
        if [layer.calls for layer in self._decoder_layers] != [1] * self.layers:
            reason = "the model does not run each of its layers once"
        elif not np.isfinite(found).all():
            reason = "its logits depend on more than the rows of the last layer"
        elif not np.allclose(found[1:2], self.logits(rows[1:2], 0, min(8, self.vocabulary)), rtol=1e-4):
            reason = "the logits of a row depend on other rows"
        elif np.allclose(found[0], found[1]):
            reason = "its logits do not depend on the rows of the last layer"
        else:
            outputs = np.array([[0.0, 0.5, -2.0], [0.5, 3.0, 1.0]])
            alone = [self._after_head(np.full((1, 1), one))[0, 0] for one in outputs.ravel()]
            if not np.allclose(self._after_head(outputs).ravel(), alone, rtol=1e-5) or alone[0] != 0:
                reason = "a token's logit depends on those of other tokens"
        if reason is not None:
            raise InvalidRequest(
                f"{self.folder}: the lens cannot read {type(self._model).__name__}: {reason}"
            )

    def _first_logits(self, rows: Array, *, as_tuple: bool) -> NDArray[np.float32]:
        """Logits of a few tokens, by layers that return a tensor or a tuple."""
        for layer in self._decoder_layers:
            layer.calls, layer.as_tuple = 0, as_tuple
        return self.logits(rows, 0, min(8, self.vocabulary))

    def _check_rows(self, rows: Array) -> None:
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise InvalidRequest(f"rows must be [n, {self.width}] for this model, not {list(rows.shape)}")

    def _checked_tokens(self, tokens: Array) -> Any:
        wrong = tokens[(tokens < 0) | (tokens >= self.vocabulary)]
        if len(wrong):
            raise InvalidRequest(f"token {wrong[0]} is not in the vocabulary of {self.vocabulary}")
        return self._torch.from_numpy(tokens.astype(np.int64))


def _check_files(folder: Path) -> None:
    """Raise InvalidRequest if a folder has no config or no safetensors files."""
    try:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"{folder}: config.json cannot be read: {error}") from None
    if not any(folder.glob("*.safetensors")):
        raise InvalidRequest(f"{folder} has no .safetensors files")


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' progress bar."""
    from transformers.utils import logging as untyped

    logging: Any = untyped
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _without_layers(folder: Path) -> tuple[Any, list[Any]]:
    """The model of a folder whose decoder layers return what they are told, and these layers.

    The model's own loader reads the files, so names, tied weights and dtypes are those of the model.

    Raises:
        InvalidRequest: the layers cannot be told from the rest, or weights of the rest are missing.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise InvalidRequest(f"{folder}: {config.model_type} is no language model that transformers knows")
    architecture: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    if architecture.config_class == config.sub_configs.get("text_config"):
        config = config.get_text_config()

    def initialise(self: Any, *arguments: Any, **options: Any) -> None:
        architecture.__init__(self, *arguments, **options)
        for layer in _layers_of(self, folder):
            _empty(layer)

    # a subclass of the same name, since the loader looks up the names of weights by it
    fields = {
        "__init__": initialise,
        "__module__": architecture.__module__,
        # weights of the layers are not reported
        "_keys_to_ignore_on_load_unexpected": [".*"],
    }
    emptied: Any = type(architecture.__name__, (architecture,), fields)
    model, loaded = emptied.from_pretrained(
        folder,
        config=config,
        dtype="auto",
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
    )
    lacking = sorted(map(str, [*loaded["missing_keys"], *loaded["mismatched_keys"]]))
    if lacking:
        raise InvalidRequest(f"{folder}: the files lack {lacking[0]}, or have it in another shape")
    return model, _layers_of(model, folder)


def _layers_of(model: Any, folder: Path) -> list[Any]:
    """The decoder layers of a model."""
    import torch

    decoder = model.get_decoder()
    count = decoder.config.get_text_config(decoder=True).num_hidden_layers
    named = {
        name: module
        for name, module in decoder.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == count
    }
    # a layer may have as many experts
    lists = [
        module for name, module in named.items() if not any(name.startswith(f"{other}.") for other in named)
    ]
    if len(lists) != 1:
        raise InvalidRequest(f"{folder}: {type(model).__name__} has no list of {count} decoder layers")
    return list(lists[0])


def _empty(layer: Any) -> None:
    """Take weights and modules out of a decoder layer; it returns `returned`, or NaN."""
    import torch

    layer._modules.clear()
    layer._parameters.clear()
    layer._buffers.clear()
    layer.returned, layer.as_tuple, layer.calls = None, False, 0

    def forward(hidden_states: Any, *_: Any, **__: Any) -> Any:
        layer.calls += 1
        rows = layer.returned
        if rows is None:
            rows = torch.tensor(float("nan"), dtype=hidden_states.dtype).expand(hidden_states.shape)
        return (rows,) if layer.as_tuple else rows

    layer.forward = forward


def _replace_head(model: Any) -> Any:
    """Put a head in place of the model's that computes a block of tokens at a time. Returns it.

    Raises:
        InvalidRequest: the model's head is no linear layer of floats.
    """
    import torch

    linear = model.get_output_embeddings()
    if type(linear) is not torch.nn.Linear or not linear.weight.is_floating_point():
        raise InvalidRequest(f"{type(model).__name__}: the head is no plain linear layer")

    class Head(torch.nn.Module):
        """Output `given`, or that of the tokens of `block`; keeps input and output."""

        def __init__(self) -> None:
            super().__init__()
            self.stored = linear.weight.detach()
            self.bias = None if linear.bias is None else linear.bias.detach()
            self.shape = tuple(self.stored.shape)
            #: the dtype to which some models turn the head's input; without memory
            self.weight = torch.zeros((), dtype=torch.float64).expand(self.shape)
            self.block, self.given = slice(None), None
            self.seen = self.returned = torch.zeros(0)

        def forward(self, rows: Any) -> Any:
            self.seen = rows
            if self.given is not None:
                self.returned = self.given
            else:
                bias = None if self.bias is None else self.bias[self.block].float()
                weight = self.stored[self.block].float()
                self.returned = torch.nn.functional.linear(rows.float(), weight, bias)
            return self.returned

    head = Head()
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if child is linear:
                setattr(module, name, head)
    return head
