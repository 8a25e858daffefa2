"""LoRA adapters: rows equal peft's own, and what a merge cannot express is refused."""

import copy
import json
import shutil
import sys
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import GPT2Config

from actograph.contract.errors import ModelChanged, ModelRefused
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.models import ModelIdentity, parse_served
from actograph.contract.specs import SamplingSpec
from actograph.demo import MODEL_DIR
from tests.support.adapters import PROJECTIONS, VOCABULARY, adapted, saved_base
from tests.support.checkpoints import save_random
from tests.support.engine_run import KeepingSink, generate, requests_for
from worker.analysis.model_files import folder_of
from worker.engine.engine import Engine
from worker.engine.loading import load_engine
from worker.engine.messages import RunOptions
from worker.engine.model import adapters
from worker.engine.model.load import load_model

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),  # of peft's training
]

#: forms that peft merges: arguments of its LoraConfig
FORMS: dict[str, dict[str, Any]] = {
    "plain": {"target_modules": PROJECTIONS},
    "rank and alpha by module": {
        "target_modules": PROJECTIONS,
        "rank_pattern": {"q_proj": 2},
        "alpha_pattern": {"q_proj": 3},
    },
    "rslora": {"target_modules": "all-linear", "use_rslora": True},
    "dora": {"target_modules": PROJECTIONS, "use_dora": True},
    "some layers": {"target_modules": PROJECTIONS, "layers_to_transform": [1]},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "a head of its own": {"target_modules": PROJECTIONS, "modules_to_save": ["lm_head"]},
    "norms of its own": {"target_modules": PROJECTIONS, "modules_to_save": ["input_layernorm", "norm"]},
    "trained tokens": {"target_modules": PROJECTIONS, "trainable_token_indices": [3, 5, 7]},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_base(tmp_path_factory.mktemp("base"))


def _engine(base: Path, adapter: Path | str | None, **options: Any) -> Engine:
    served = parse_served(f"m={base}" if adapter is None else f"m={base}+{adapter}")
    return load_engine(served, ModelLoadOptions(**options), RunOptions(slots=4), device="cpu")


def _rows(engine: Engine) -> dict[str, torch.Tensor]:
    """Rows of the residual stream, the MLPs and the logits, with the tokens of a greedy answer."""
    sink, hooks = KeepingSink(), ["resid_post.0", "resid_post.2", "mlp_out.1", "logits"]
    requests = requests_for(engine, ["Tom has 34 apples."])
    made = generate(engine, requests, sampling=SamplingSpec(max_tokens=12), hooks=hooks, sink=sink)
    ids = [*made[0].prompt_ids, *made[0].generated_ids][:-1]
    return {hook: sink.rows(0, hook) for hook in hooks} | {"ids": torch.tensor([ids])}


@torch.inference_mode()
def _theirs(model: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same rows of a model of peft or transformers."""
    found: dict[str, torch.Tensor] = {}
    layers = next(m for n, m in model.named_modules() if n.endswith("layers"))
    handles = [layers[1].mlp.register_forward_hook(lambda _, __, out: found.update({"mlp_out.1": out[0]}))]
    for layer in (0, 2):

        def keep(_: Any, __: Any, out: Any, name: str = f"resid_post.{layer}") -> None:
            found[name] = (out[0] if isinstance(out, tuple) else out)[0]

        handles.append(layers[layer].register_forward_hook(keep))
    found["logits"] = model(input_ids=ids, use_cache=False).logits[0]
    for handle in handles:
        handle.remove()
    return found


def test_rows_equal_pefts_own_unmerged_and_merged(
    base: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    plain = _rows(_engine(base, None))
    for name, form in FORMS.items():
        with subtests.test(name):
            folder = tmp_path / name.replace(" ", "-")
            theirs = adapted(base, folder, **form)
            if name not in ("plain", "dora", "a head of its own"):  # one load is enough for what follows it
                merged = load_model(str(base), adapter=str(folder), device="cpu")
                ids = torch.arange(3, 40)[None]
                with torch.inference_mode():
                    logits = merged.hf(input_ids=ids).logits[0]
                torch.testing.assert_close(logits, _theirs(theirs, ids)["logits"], atol=1e-4, rtol=1e-4)
                continue
            engine = _engine(base, folder)
            ours = _rows(engine)
            ids = ours.pop("ids")
            unmerged = _theirs(theirs, ids)
            pefts = _theirs(theirs.merge_and_unload(), ids)
            for hook, rows in ours.items():
                expected = unmerged[hook][-len(rows) :]
                torch.testing.assert_close(rows, expected, atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(rows, pefts[hook][-len(rows) :], atol=1e-4, rtol=1e-4)
            assert (ours["logits"][0] - plain["logits"][0]).abs().max() > 0.01
            assert not any("lora" in one.lower() for one in engine.structure.module_locations)


def test_an_adapter_is_merged_in_bfloat16_and_into_layers_of_conv1d(
    base: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    with subtests.test("bfloat16"):
        theirs = adapted(base, tmp_path / "lora", target_modules=PROJECTIONS).to(torch.bfloat16)
        engine = _engine(base, tmp_path / "lora", dtype="bfloat16")
        assert {parameter.dtype for parameter in engine.model.hf.parameters()} == {torch.bfloat16}
        ours = _rows(engine)
        expected = _theirs(theirs, ours["ids"])["logits"].float()
        apart = (ours["logits"].float() - expected[-len(ours["logits"]) :]).abs().max()
        assert apart < 0.1 * expected.abs().max()
    with subtests.test("GPT-2"):
        shape = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "vocab_size": VOCABULARY}
        save_random(GPT2Config(**shape, bos_token_id=1, eos_token_id=1), tmp_path / "gpt2")
        theirs = adapted(tmp_path / "gpt2", tmp_path / "conv", target_modules=["c_attn"], fan_in_fan_out=True)
        engine = _engine(tmp_path / "gpt2", tmp_path / "conv")
        sink = KeepingSink()
        requests = requests_for(engine, ["Tom has 34 apples."])
        (made,) = generate(engine, requests, sampling=SamplingSpec(max_tokens=2), hooks=["logits"], sink=sink)
        with torch.inference_mode():
            logits = theirs(input_ids=torch.tensor([made.prompt_ids])).logits[0]
        torch.testing.assert_close(sink.rows(0, "logits")[0], logits[-1], atol=1e-4, rtol=1e-4)


def test_the_identity_of_other_models_stays_as_it_was() -> None:
    plain = ModelIdentity(
        model="m", source="s", weights_sha256="0" * 64, dtype="float32", tokenizer_sha256="1" * 64
    )
    fields = {
        "weights_sha256": "0" * 64, "dtype": "float32", "attn_implementation": None,
        "tokenizer_sha256": "1" * 64, "template_sha256": None, "repeatable": False,
    }  # fmt: skip
    assert plain.sha256 == sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()
    assert plain.model_copy(update={"adapter_sha256": "2" * 64}).sha256 != plain.sha256


def _set(**fields: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


def _tensors(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        path = folder / "adapter_model.safetensors"
        save_file(change(load_file(path)), path)

    return write


def _pickled(folder: Path) -> None:
    torch.save({}, folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").unlink()


def _new_token(folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    tokenizer.add_tokens(["<new>"])
    tokenizer.save(str(folder / "tokenizer.json"))


REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "pickled": (_pickled, r"pickled weights \(.bin\) are never read"),
    "no config": (lambda folder: (folder / "adapter_config.json").unlink(), "no adapter of peft"),
    "damaged config": (lambda folder: (folder / "adapter_config.json").write_text("{"), "is damaged"),
    "another base": (_set(base_model_name_or_path="org/other"), "trained on org/other, not on org/base"),
    "another kind": (_set(peft_type="PREFIX_TUNING"), "type PREFIX_TUNING; only LoRA is merged"),
    "a classifier": (_set(task_type="SEQ_CLS"), "an adapter for SEQ_CLS"),
    "from a token on": (_set(alora_invocation_tokens=[5]), "alora_invocation_tokens"),
    "repeated layers": (_set(layer_replication=[[0, 2], [1, 3]]), "layer_replication"),
    "no such modules": (_set(target_modules=["nothing"]), "does not fit the base .*nothing"),
    "a tensor too few": (_tensors(lambda all_: dict(list(all_.items())[1:])), "lacks tensors .*lora_"),
    "a tensor too many": (
        _tensors(lambda all_: all_ | {"base_model.model.model.layers.9.x.lora_A.weight": torch.zeros(4, 4)}),
        "has tensors for modules that the base does not have: .*layers.9",
    ),
    "another width": (
        _tensors(lambda all_: {k: v[..., :1].contiguous() for k, v in all_.items()}),
        "size mismatch",
    ),
    "not finite": (_tensors(lambda all_: {k: v * float("nan") for k, v in all_.items()}), "does not fit"),
    "tokens of its own": (_new_token, r"tokens that the base's has not \(<new>\)"),
}


def test_what_cannot_be_merged_is_refused_with_the_reason(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    adapted(base, tmp_path / "good", target_modules=PROJECTIONS)
    good = load_model(str(base), device="cpu")
    for name, (damage, reason) in REFUSED.items():
        with subtests.test(name), pytest.raises(ModelRefused, match=reason):
            folder = shutil.copytree(tmp_path / "good", tmp_path / name.replace(" ", "-"))
            damage(folder)
            found = adapters.find("m", str(folder), None, base="org/base")
            adapters.merge(copy.deepcopy(good.hf), good.tokenizer, found, "m")
    for name, options in {
        "several ranks": {"ranks": 2},
        "several devices": {"device_map": "auto"},
    }.items():
        with subtests.test(name), pytest.raises(ModelRefused, match="merged on one device"):
            load_model(str(base), adapter=str(tmp_path / "good"), **options)  # type: ignore[arg-type]
    with subtests.test("no package"), monkeypatch.context() as patch:
        patch.setitem(sys.modules, "peft", None)
        with pytest.raises(ModelRefused, match=r"pip install 'actograph\[adapters\]'"):
            _engine(base, tmp_path / "good")
    with subtests.test("a resized vocabulary"), pytest.raises(ModelRefused, match="does not fit the base"):
        folder = shutil.copytree(tmp_path / "good", tmp_path / "resized")
        name = "base_model.model.model.embed_tokens.weight"
        _tensors(lambda all_: all_ | {name: torch.zeros(VOCABULARY + 2, 32)})(folder)
        _engine(base, folder)


def test_an_analysis_reads_the_base_only_if_the_adapter_leaves_norm_and_head(
    base: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name, fields, reason in (
        ("layers", {}, None),
        ("head", {"modules_to_save": ["lm_head"]}, "the adapter changes .*lm_head"),
    ):
        with subtests.test(name):
            adapted(base, tmp_path / name, target_modules=PROJECTIONS, **fields)
            identity = _engine(base, tmp_path / name).structure.identity
            assert identity is not None
            served = [parse_served(f"m={base}+{tmp_path / name}")]
            if reason is None:
                assert folder_of(identity, served) == base
            else:
                with pytest.raises(ModelRefused, match=reason):
                    folder_of(identity, served)
            _set(lora_alpha=99)(tmp_path / name)
            with pytest.raises(ModelChanged, match="the adapter"):
                folder_of(identity, served)
