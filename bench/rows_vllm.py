"""vLLM on the same prompts, which keeps no activations; runs in an environment of its own.

    python rows_vllm.py MODEL_FOLDER DTYPE < REQUESTS

Each line of standard input is a JSON object with `prompts` (token ids), `max_tokens` and `eos`; each line of
standard output has the generated ids, and the CPU time of all processes of vLLM in seconds.
"""

import importlib
import json
import os
import sys
from typing import Any

import psutil


def cpu_seconds() -> float:
    """CPU time of this process and of those that it has started."""
    own = psutil.Process()
    times = [one.cpu_times() for one in (own, *own.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def main() -> None:
    """Answer requests until the end of standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM and its processes log to standard output
    vllm: Any = importlib.import_module("vllm")
    folder, dtype = sys.argv[1:3]
    llm = vllm.LLM(model=folder, dtype=dtype, max_model_len=2048, disable_log_stats=True)
    for line in sys.stdin:
        asked = json.loads(line)
        before = cpu_seconds()
        options = vllm.SamplingParams(
            temperature=0.0, max_tokens=asked["max_tokens"], stop_token_ids=asked["eos"], detokenize=False
        )
        llm.reset_prefix_cache()  # of the rounds before
        prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
        made = llm.generate(prompts, options, use_tqdm=False)
        ids = [list(one.outputs[0].token_ids) for one in made]
        answers.write(json.dumps({"ids": ids, "cpu_seconds": cpu_seconds() - before}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
