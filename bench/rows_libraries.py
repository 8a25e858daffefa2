"""TransformerLens and interp-engine on the same prompts; runs in an environment of their own.

    python rows_libraries.py LIBRARY MODEL_FOLDER THREADS < REQUEST.json

Both generate one prompt at a time and read the rows in a second forward, which is how their interfaces work.
The request has `prompts`, `max_tokens`, `eos`; each round's seconds, ids and number of rows go to stdout.
"""

import json
import sys
import time
from typing import Any

import torch


def interp_engine(folder: str, layers: int) -> Any:
    from interp_engine import Address, capture_generation, load_model

    model = load_model(folder, backend="eager", dtype="float32", device="cpu")
    points = [Address(point, layer) for layer in range(layers) for point in ("attn_in", "mlp_in")]

    def run(prompt: list[int], max_tokens: int) -> tuple[list[int], int]:
        completion, cache = capture_generation(model, prompt, points, max_tokens=max_tokens)
        return list(completion.token_ids), sum(cache[point].shape[1] for point in points)

    return run


def transformer_lens(folder: str, layers: int) -> Any:
    from transformer_lens.model_bridge import TransformerBridge

    bridge = TransformerBridge.boot_transformers(folder, device="cpu", dtype=torch.float32)
    names = [f"blocks.{layer}.{norm}.hook_normalized" for layer in range(layers) for norm in ("ln1", "ln2")]

    def run(prompt: list[int], max_tokens: int) -> tuple[list[int], int]:
        ids = torch.tensor([prompt])
        whole = bridge.generate(
            ids, max_new_tokens=max_tokens, do_sample=False, verbose=False, return_type="tokens"
        )
        _, cache = bridge.run_with_cache(whole[:, :-1], names_filter=names)
        return whole[0, len(prompt) :].tolist(), sum(cache[name].shape[1] for name in names)

    return run


def main() -> None:
    library, folder, threads = sys.argv[1:4]
    torch.set_num_threads(int(threads))
    asked = json.load(sys.stdin)
    with torch.inference_mode():
        run = {"interp-engine": interp_engine, "TransformerLens": transformer_lens}[library](
            folder, asked["layers"]
        )
        run(asked["prompts"][0], 2)
        for _ in range(asked["rounds"]):
            started, cpu = time.perf_counter(), time.process_time()
            made = [run(prompt, asked["max_tokens"]) for prompt in asked["prompts"]]
            spent = {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - cpu}
            answer = spent | {"ids": [ids for ids, _ in made], "rows": sum(rows for _, rows in made)}
            print("round " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
