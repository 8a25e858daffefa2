"""SAELens' format of an SAE: `cfg.json` beside `sae_weights.safetensors`.

Written by `SAE.save_model` and `TrainingSAE.save_inference_model`; files from before SAELens 6 have the hook
at the top level. What a config asks for and this service does not compute exactly is refused.
https://github.com/decoderesearch/SAELens (sae_lens/saes, sae_lens/loading/pretrained_sae_loaders.py)
"""

from collections.abc import Mapping
from typing import Any, NoReturn, get_args

from actograph.contract.errors import InvalidRequest
from actograph.contract.saes import MOST_LATENTS, Architecture, Normalisation, SaeConfig
from actograph.tensor_files import TensorFileHeader

CONFIG_NAME, WEIGHTS_NAME = "cfg.json", "sae_weights.safetensors"
#: a larger config is none
MOST_CONFIG_BYTES = 1 << 20

_ARCHITECTURES: tuple[str, ...] = get_args(Architecture)
_NORMALISATIONS: tuple[str, ...] = get_args(Normalisation)
_FLOATS = ("F64", "F32", "F16", "BF16")
#: options with which TransformerLens changes what the model's activations are
_CHANGED_MODEL = ("fold_value_biases", "refactor_factored_attn_matrices")
_CENTRED = {"model_from_pretrained_kwargs": {"center_writing_weights": True}}
#: repositories of the Hub -> what their files leave out, as SAELens' own registry adds it (`config_overrides`
#: of sae_lens/pretrained_saes.yaml)
_REGISTRY: dict[str, dict[str, Any]] = {
    "jbloom/GPT2-Small-SAEs-Reformatted": _CENTRED,
    "jbloom/GPT2-Small-Feature-Splitting-Experiment-Layer-8": _CENTRED,
    "tommmcgrath/gpt2-small-mlp-out-saes": _CENTRED,
    "JoshEngels/Mistral-7B-Residual-Stream-SAEs": {"normalize_activations": "constant_norm_rescale"},
}
#: names of before SAELens 6
_RENAMED = {
    "hook_point": "hook_name",
    "hook_point_head_index": "hook_head_index",
    "activation_fn_str": "activation_fn",
}
_WHY = {
    "batchtopk": "it is the form in which it is trained; save it with save_inference_model, as jumprelu",
    "expected_average_only_in": "its factor is not in the files; fold it into the weights with "
    "fold_activation_norm_scaling_factor and save the SAE again",
}


def _refuse(what: str, why: str = "") -> NoReturn:
    raise InvalidRequest(f"{CONFIG_NAME}: {what}{f': {why}' if why else ''}")


def config_of(
    cfg: Mapping[str, Any],
    header: TensorFileHeader,
    *,
    hub: str | None = None,
    center_rows: bool | None = None,
) -> tuple[SaeConfig, str | None]:
    """The arithmetic of an SAE, and the name of its hook if the files have one.

    Args:
        cfg: the object of `cfg.json`.
        header: of its weights.
        hub: repository that they are from.
        center_rows: see `NewSae`.

    Raises:
        InvalidRequest: the files do not fit each other, or ask for what is not computed here.
    """
    given = {_RENAMED.get(name, name): value for name, value in cfg.items()}
    about = given.get("metadata") if isinstance(given.get("metadata"), dict) else {}
    assert isinstance(about, dict)
    given = {**about, **{name: value for name, value in given.items() if value is not None}}
    known = _REGISTRY.get(hub or "", {})
    given |= known
    if center_rows is None:
        center_rows = known is _CENTRED
        _require_plain(given, is_centred=center_rows)
    hook = given.get("hook_name")
    if hook is not None and not isinstance(hook, str):
        _refuse("hook_name is not a text")
    architecture, k = _architecture(given)
    normalisation = given.get("normalize_activations", False)
    if isinstance(normalisation, bool):  # of old files
        normalisation = "expected_average_only_in" if normalisation else "none"
    if normalisation not in _NORMALISATIONS:
        _refuse(
            f"normalize_activations {normalisation!r} is not computed here",
            _WHY.get(str(normalisation), f"only {', '.join(_NORMALISATIONS)} are"),
        )
    _check_rows(given, hook)
    found = SaeConfig(
        architecture=architecture,
        d_in=_size(given, "d_in"),
        d_sae=_size(given, "d_sae"),
        k=k,
        apply_b_dec_to_input=bool(given.get("apply_b_dec_to_input", True)),
        normalize_activations=normalisation,
        rescale_acts_by_decoder_norm=architecture == "topk"
        and bool(given.get("rescale_acts_by_decoder_norm", False)),
        center_rows=center_rows,
    )
    if k is not None and k > found.d_sae:
        _refuse(f"k is {k}, and there are {found.d_sae} latents")
    _check_tensors(found, header)
    return found, hook


def _architecture(given: Mapping[str, Any]) -> tuple[Architecture, int | None]:
    architecture, activation = given.get("architecture", "standard"), given.get("activation_fn", "relu")
    options = given.get("activation_fn_kwargs")
    own = options.get("k") if isinstance(options, dict) else None
    if activation == "topk":
        architecture = "topk"
    elif activation != "relu" and architecture != "topk":
        _refuse(f"activation_fn {activation!r} is not computed here", "only relu and topk are")
    if architecture not in _ARCHITECTURES:
        _refuse(
            f"architecture {architecture!r} is not computed here",
            _WHY.get(str(architecture), f"only {', '.join(_ARCHITECTURES)} are"),
        )
    if architecture != "topk":
        found: Architecture = architecture
        return found, None
    k = given.get("k") if own is None else own
    if not isinstance(k, int) or isinstance(k, bool) or k < 1:
        _refuse(f"k of a topk SAE is {k!r}; it is a whole number from 1 on")
    return "topk", k


def _check_rows(given: Mapping[str, Any], hook: str | None) -> None:
    """Refuse rows that differ from those of the hook."""
    reshape = given.get("reshape_activations", "none")
    if reshape not in ("none", "hook_z"):
        _refuse(f"reshape_activations {reshape!r} is not computed here")
    if reshape == "hook_z" and not (hook or "").endswith("_z"):
        _refuse(f"reshape_activations hook_z does not suit the hook {hook!r}")
    if given.get("hook_head_index") is not None:
        _refuse(
            f"hook_head_index is {given['hook_head_index']}",
            "an SAE of a single head is not computed here, one of all heads is",
        )
    if given.get("hook_name_out") not in (None, hook):
        _refuse("hook_name_out is set", "a transcoder is no SAE")
    changes = given.get("model_from_pretrained_kwargs")
    for name in _CHANGED_MODEL:
        if isinstance(changes, dict) and changes.get(name):
            _refuse(
                f"model_from_pretrained_kwargs.{name} is set",
                "it was trained on activations that TransformerLens had changed, and here they are the "
                "model's own",
            )


def _require_plain(given: Mapping[str, Any], *, is_centred: bool) -> None:
    """Refuse an SAE of a model whose weights were centred, if it is unknown whether they could be."""
    changes = given.get("model_from_pretrained_kwargs")
    if isinstance(changes, dict) and changes.get("center_writing_weights") and not is_centred:
        _refuse(
            "model_from_pretrained_kwargs.center_writing_weights is set",
            "it was trained on rows without their means, if its model has LayerNorm. Then store it with "
            "center_rows: true; of a model with RMSNorm, which TransformerLens does not centre, with false",
        )


def _size(given: Mapping[str, Any], name: str) -> int:
    value = given.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_LATENTS:
        _refuse(f"{name} is {value!r}; it is a whole number from 1 on")
    return value


def shapes_of(config: SaeConfig) -> dict[str, tuple[int, ...]]:
    """Shape of each of its tensors."""
    d_in, d_sae = config.d_in, config.d_sae
    shapes: dict[str, tuple[int, ...]] = {"W_enc": (d_in, d_sae), "W_dec": (d_sae, d_in), "b_dec": (d_in,)}
    own = {"jumprelu": ("b_enc", "threshold"), "gated": ("b_gate", "r_mag", "b_mag")}
    return shapes | dict.fromkeys(own.get(config.architecture, ("b_enc",)), (d_sae,))


def _check_tensors(config: SaeConfig, header: TensorFileHeader) -> None:
    """Refuse weights that the config does not describe."""
    shapes = shapes_of(config)
    for name, shape in shapes.items():
        entry = header.tensors.get(name)
        if entry is None:
            raise InvalidRequest(f"{WEIGHTS_NAME}: it has no {name}, which {config.architecture} SAEs have")
        if entry.shape != shape or entry.dtype not in _FLOATS:
            raise InvalidRequest(
                f"{WEIGHTS_NAME}: {name} is {entry.dtype} {list(entry.shape)}; by {CONFIG_NAME} it is floats "
                f"{list(shape)}"
            )
    if others := header.tensors.keys() - shapes.keys():
        raise InvalidRequest(
            f"{WEIGHTS_NAME}: unexpected tensors {', '.join(sorted(others))}; {config.architecture} SAEs do "
            "not use them"
        )
