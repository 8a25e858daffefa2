"""The alternatives on the same GPU: `generate` with plain hooks, and lm-eval's hf backend.

    python -m bench.gpu_rivals FOLDER DEVICE BATCH SECONDS [SITE]

`bench.gpu` starts it, in the environment that has lm-eval; SITE is where torch is, if that is another one.
The request on standard input has `prompts` (token ids) and `max_tokens`; the last line of standard output has
the figures of each rival, or why it has none. All answers have `max_tokens` tokens, which is the best case of
batches: nothing waits for the longest answer.
"""

import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Ids = tuple[int, ...]
#: prompts and the number of tokens of each answer -> generated tokens
Run = Callable[[Sequence[Ids], int], int]
PLAIN_HOOKS, LM_EVAL = "plain hooks, all layers x 2", "lm-eval's hf backend, nothing kept"
#: tokens of each answer of the batch that warms up
WARM_UP = 4


def repeated(run: Run, asked: dict[str, Any], batch: int, seconds: float) -> dict[str, Any]:
    """Tokens a second of batch after batch, at least one, until the time is over."""
    prompts = [tuple(ids) for ids in asked["prompts"]]
    run(prompts[:batch], WARM_UP)
    began, generated, at = time.monotonic(), 0, 0
    while not generated or time.monotonic() - began < seconds:
        some = [prompts[(at + i) % len(prompts)] for i in range(batch)]
        generated, at = generated + run(some, asked["max_tokens"]), at + batch
    took = time.monotonic() - began
    return {
        "batch": batch,
        "generated": generated,
        "seconds": round(took, 3),
        "tokens_per_second": round(generated / took, 1),
    }


def plain_hooks(hf: Any) -> Run:
    """`generate` with plain forward hooks that keep the inputs of attention and MLP of every layer."""
    from bench.rows_contenders import Setup
    from bench.rows_contenders import plain_hooks as script

    norms = ("input_layernorm", "post_attention_layernorm")
    modules = [f"model.layers.{i}.{norm}" for i in range(hf.config.num_hidden_layers) for norm in norms]

    def run(prompts: Sequence[Ids], tokens: int) -> int:
        setup = Setup(hf, None, modules, tokens, frozenset(), pad=0, batch=len(prompts))
        return sum(len(one.ids) for one in script(setup, prompts))

    return run


def lm_eval(hf: Any, tokenizer: Any, batch: int) -> Run:
    """lm-eval's `generate_until`, from texts of these lengths to texts."""
    backend: Any = importlib.import_module("lm_eval.models.huggingface").HFLM
    instance: Any = importlib.import_module("lm_eval.api.instance").Instance
    model = backend(pretrained=hf, tokenizer=tokenizer, batch_size=batch, max_length=4096)

    def run(prompts: Sequence[Ids], tokens: int) -> int:
        options = {"until": [], "max_gen_toks": tokens, "do_sample": False}
        asked = [
            instance(
                request_type="generate_until",
                doc={},
                arguments=(text_of(tokenizer, len(ids), number), options),
                idx=number,
            )
            for number, ids in enumerate(prompts)
        ]
        return tokens * len(model.generate_until(asked, disable_tqdm=True))

    return run


def text_of(tokenizer: Any, tokens: int, number: int) -> str:
    """A text of about so many tokens; others for other numbers."""
    words = [str((7 * number + i) % 90) for i in range(tokens)]
    while len(words) > 1 and len(tokenizer(" ".join(words))["input_ids"]) > tokens:
        words = words[: -max(1, len(words) // 16)]
    return " ".join(words)


def main() -> None:
    """Measure the rivals, one after the other, on one loaded model."""
    folder, device, batch, seconds, *site = sys.argv[1:]
    sys.path += site
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    asked, each = json.load(sys.stdin), float(seconds) / 2
    automatic: Any = AutoModelForCausalLM
    hf = automatic.from_pretrained(Path(folder), dtype=torch.bfloat16).eval().to(device)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    tokenizer.padding_side = "left"
    tokenizer.pad_token_id = tokenizer.pad_token_id or 0
    rivals: dict[str, Callable[[], Run]] = {PLAIN_HOOKS: lambda: plain_hooks(hf)}
    found: dict[str, Any] = {}
    if importlib.util.find_spec("lm_eval") is None:
        found[LM_EVAL] = {"left_out": "lm_eval is not installed; pip install 'actograph[lm-eval]'"}
    else:
        rivals[LM_EVAL] = lambda: lm_eval(hf, tokenizer, int(batch))
    for name, made in rivals.items():
        try:
            with torch.inference_mode():
                found[name] = repeated(made(), asked, int(batch), each)
        except Exception as error:  # noqa: BLE001 (the other rival is measured all the same)
            found[name] = {"trouble": f"{type(error).__name__}: {error}"}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
