"""A real model of 135 million parameters in the service, against plain transformers and lm-eval."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from actograph.analysis.checkpoint import Checkpoint
from actograph.analysis.probe import probe
from actograph.client import Client

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

HOOKS = ["resid_post.0", "attn_out.7", "mlp_out.15", "resid_mid.22", "resid_post.29", "final_norm", "logits"]
CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "Greece": "Athens", "Austria": "Vienna", "Poland": "Warsaw", "Hungary": "Budapest", "Sweden": "Stockholm",
    "Norway": "Oslo", "Finland": "Helsinki", "Denmark": "Copenhagen", "Ireland": "Dublin", "Russia": "Moscow",
    "Turkey": "Ankara", "Egypt": "Cairo", "Kenya": "Nairobi", "Japan": "Tokyo", "China": "Beijing",
    "India": "Delhi", "Thailand": "Bangkok", "Vietnam": "Hanoi", "Iran": "Tehran", "Iraq": "Baghdad",
    "Cuba": "Havana", "Peru": "Lima", "Chile": "Santiago", "Canada": "Ottawa", "Mexico": "Mexico City",
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(smollm2: Path) -> tuple[Any, Any]:
    """Model and tokenizer of transformers alone."""
    automatic: Any = AutoModelForCausalLM
    return automatic.from_pretrained(smollm2, dtype=torch.float32).eval(), AutoTokenizer.from_pretrained(
        smollm2
    )


def whole_forward(model: Any, ids: list[int]) -> dict[str, np.ndarray[Any, Any]]:
    """Rows of HOOKS over these tokens, by hooks of the test's own."""
    seen: dict[str, torch.Tensor] = {}
    layers, handles = model.model.layers, []

    def keep(name: str, module: Any, *, of_input: bool = False) -> None:
        def before(_: Any, args: Any) -> None:
            seen[name] = args[0][0].clone()

        def after(_: Any, __: Any, output: Any) -> None:
            seen[name] = (output[0] if isinstance(output, tuple) else output)[0].clone()

        handles.append(
            module.register_forward_pre_hook(before) if of_input else module.register_forward_hook(after)
        )

    keep("resid_post.0", layers[0])
    keep("attn_out.7", layers[7].self_attn)
    keep("mlp_out.15", layers[15].mlp)
    keep("resid_mid.22", layers[22].post_attention_layernorm, of_input=True)
    keep("resid_post.29", layers[29])
    keep("final_norm", model.model.norm)
    keep("logits", model.lm_head)
    with torch.inference_mode():
        model(input_ids=torch.tensor([ids]), use_cache=False)
    for handle in handles:
        handle.remove()
    return {name: tensor.numpy() for name, tensor in seen.items()}


@pytest.mark.parametrize("engine", ["streaming", "traced"])
def test_tokens_and_rows_are_those_of_transformers(
    client: Client, shared: Path, plain: tuple[Any, Any], engine: str
) -> None:
    model, tokenizer = plain
    job = client.evaluate(
        "gsm8k",
        dataset=shared / "data/gsm8k/test.jsonl",
        limit=4,
        engine=engine,
        max_tokens=24,
        capture={"hooks": HOOKS},
    ).wait()
    said = {sample.session_id: sample.completion for sample in job.samples()}
    for session in job.sessions():
        ids = session.token_ids.tolist()
        prompt = session.prompt_tokens
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        assert ids[prompt:] == logits[prompt - 1 : -1].argmax(-1).tolist()
        assert tokenizer.decode(ids[prompt:], skip_special_tokens=True) == said[session.id]
        for hook, due in whole_forward(model, ids[:-1]).items():
            scale = float(np.abs(due).max())
            got = session[hook][:]
            assert np.abs(got - due[-len(got) :]).max() <= 1e-4 * scale, (session.sample_index, hook)


def test_the_lens_of_the_last_layer_is_the_logits(client: Client, smollm2: Path) -> None:
    job = client.capture(
        ["The capital of France is"], capture={"hooks": ["resid_post.29", "logits"]}, max_tokens=8
    )
    session = job.wait().sessions().one()
    (sample,) = job.samples()
    read = Checkpoint(smollm2).logits(session["resid_post.29"][:])
    logits = session["logits"][:]  # of the last token of the prompt, and of the generated ones
    assert len(logits) == 8
    assert np.abs(read[-8:] - logits).max() <= 1e-3
    assert "Paris" in (sample.completion or "")


def test_a_probe_of_true_and_false_statements_finds_them_in_the_middle_of_the_model(client: Client) -> None:
    """Folds are grouped by country, so that the probe cannot know a capital from its training rows."""
    countries = list(CAPITALS)
    rows = [(country, CAPITALS[country], 1) for country in countries]
    rows += [
        (country, CAPITALS[countries[(i + 7) % len(countries)]], 0) for i, country in enumerate(countries)
    ]
    job = client.capture(
        [f"The capital of {country} is {city}." for country, city, _ in rows],
        capture="resid_post@all",
        positions="last_prompt",
        mode="prefill",
    ).wait()
    found = {}
    for layer in (0, 12):
        matrix = job.matrix(f"resid_post.{layer}", label=None)
        labels = np.array([rows[index][2] for index in matrix.sample_index])
        groups = [rows[index][0] for index in matrix.sample_index]
        words = [" ".join(rows[index][:2]) for index in matrix.sample_index]
        found[layer] = probe(matrix.features, labels, groups, texts=words, shuffles=5)
    assert found[12].auroc > 0.95
    assert found[0].auroc < 0.65
    assert found[12].baselines["bag_of_words"]["auroc"] < 0.65


def test_verdicts_and_texts_are_those_of_lm_eval(
    client: Client, shared: Path, smollm2: Path, lm_eval: Callable[..., list[dict[str, Any]]]
) -> None:
    number, most = 32, 96
    job = client.evaluate(
        "gsm8k",
        dataset=shared / "data/gsm8k/test.jsonl",
        limit=number,
        max_tokens=most,
        scorers=["strict-match", "flexible-extract"],
        capture=None,
    )
    (theirs,) = lm_eval(
        {
            "op": "evaluate", "model": str(smollm2), "task": "gsm8k", "num_fewshot": 0, "limit": number,
            "max_tokens": most, "chat": True, "batch_size": 8, "dtype": "float32", "device": "cpu",
            "threads": 2,
        }
    )  # fmt: skip
    for sample, answer in zip(job.wait().samples(), theirs["samples"], strict=True):
        assert (sample.prompt, sample.completion) == (answer["prompt"], answer["completion"])
        for name, (extracted, verdict) in answer["scores"].items():
            score = sample.scores[f"exact_match,{name}"]
            assert [score.answer or "[invalid]", score.value] == [extracted, verdict]


def test_steering_along_a_difference_of_means_moves_what_is_likely(
    client: Client, plain: tuple[Any, Any]
) -> None:
    """Happy minus sad texts at a middle layer: the more of it, the likelier a happy word than a sad one."""
    happy, sad = ("happy", "joyful", "wonderful", "delighted"), ("sad", "terrible", "miserable", "awful")
    texts = [f"Today I feel {word} and everything is {word}" for word in (*happy, *sad)]
    read = client.capture(texts, capture="resid_post.14", positions="last_prompt", mode="prefill").wait()
    matrix = read.matrix("resid_post.14", label=None)
    rows = matrix.features[np.argsort(matrix.sample_index)]
    mood = rows[: len(happy)].mean(0) - rows[len(happy) :].mean(0)
    vector = client.vectors.create("mood", "resid_post.14", mood.tolist())
    tokens = [[plain[1].encode(f" {word}")[0] for word in words] for words in (happy, sad)]
    asked = ["Today I feel", "My day was", "The news made me feel", "When I think of tomorrow, I feel"]
    leaning = []
    for coefficient in (-1.0, 0.0, 1.0):
        edit = {"hook": "resid_post.14", "op": "add", "vector_id": vector.id, "coefficient": coefficient}
        job = client.capture(
            asked, capture="logits", positions="last_prompt", mode="prefill", interventions=[edit]
        )
        logits = job.wait().matrix("logits", label=None).features
        leaning.append(float(logits[:, tokens[0]].mean() - logits[:, tokens[1]].mean()))
    assert leaning[0] + 1 < leaning[1] < leaning[2] - 1, leaning
