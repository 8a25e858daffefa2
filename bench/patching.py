"""Cells of activation patching per second: the engine, a loop of plain hooks, and TransformerLens.

    python -m bench.patching --tokenizer FOLDER [--layers 12 --width 256] [--tokens 32] [--json FILE]

A model of random weights in GPT-2's shape reads two prompts that differ in one token. Each cell puts a row
of the clean run into the corrupted one, at one layer and position of `resid_pre` and `mlp_out`, and reads the
log probability of a token. The loop runs one forward a cell, with a hook for the row. TransformerLens,
if `--transformer-lens` names its Python, runs its own `get_act_patch_*`. All metrics must be equal to 1e-4.
"""

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import psutil
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config

from actograph.contract.row_selection import TokenRange
from bench.marks import Mark, print_marks, write_result
from tests.support.engine_run import read_texts
from tests.support.plain_forward import plain_rows
from tests.support.transformer_lens import PROGRAM
from worker.engine.engine import Engine
from worker.engine.messages import Edit, Request
from worker.engine.model.load import load_model

POINTS = ("resid_pre", "mlp_out")
ANSWER = 300


def requests(engine: Engine, clean: list[int], corrupted: list[int], layers: int) -> Iterator[Request]:
    """A request for each cell, by point, layer and position."""
    names = [f"{point}.{layer}" for point in POINTS for layer in range(layers)]
    rows = plain_rows(engine, clean, names)
    for name in names:
        for token in range(len(clean)):
            edit = Edit(
                hook=name,
                op="replace",
                vector=rows[name][token].numpy(),
                positions=TokenRange(start=token, stop=token + 1),
            )
            yield Request(
                key=f"{name} {token}", prompt_ids=tuple(corrupted), seed=0, max_tokens=0,
                next_tokens=(ANSWER,), edits=(edit,),
            )  # fmt: skip


def plain(engine: Engine, cells: list[Request]) -> list[float]:
    """The metric of cells, one forward each."""
    hf: Any = engine.model.hf
    found = []
    for cell in cells:
        (edit,) = cell.edits
        point, layer = edit.hook.split(".")
        block = hf.transformer.h[int(layer)]
        assert isinstance(edit.positions, TokenRange)
        token, row = edit.positions.start, torch.from_numpy(edit.vector)

        def put(tensor: Any, token: int = token, row: Any = row) -> Any:
            tensor[0, token] = row
            return tensor

        if point == "resid_pre":
            handle = block.register_forward_pre_hook(lambda _, args, put=put: (put(args[0]), *args[1:]))
        else:
            handle = block.mlp.register_forward_hook(lambda _, __, out, put=put: put(out))
        with torch.inference_mode():
            logits = hf(torch.tensor([cell.prompt_ids]), use_cache=False).logits[0, -1]
        handle.remove()
        found.append(float(logits.log_softmax(-1)[ANSWER]))
    return found


def theirs(python: Path, folder: str, sides: tuple[list[int], list[int]]) -> tuple[np.ndarray, float]:
    """TransformerLens' metrics, [points, layers, positions], and its seconds."""
    out = Path(folder) / "theirs.npz"
    texts = [",".join(map(str, ids)) for ids in sides]
    command = [str(python), str(PROGRAM), folder, *texts, str(ANSWER), "-1", str(out), *POINTS]
    subprocess.run(command, check=True, capture_output=True)
    with np.load(out) as arrays:
        return np.stack([arrays[point] for point in POINTS]), float(arrays["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with a tokenizer")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=32, help="length of the prompts")
    parser.add_argument("--transformer-lens", type=Path, help="a Python that has it")
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--json", type=Path, help="write the result here")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clean = [3 + place % 200 for place in range(given.tokens)]
    corrupted = [*clean[: given.tokens // 2], 400, *clean[given.tokens // 2 + 1 :]]
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=512, n_embd=given.width, n_layer=given.layers, n_head=8, bos_token_id=1, eos_token_id=1
        )
        model: Any = AutoModelForCausalLM
        model.from_config(config).save_pretrained(folder)
        AutoTokenizer.from_pretrained(given.tokenizer).save_pretrained(folder)
        engine = Engine(load_model(folder, device="cpu", name="patched"))
        cells = list(requests(engine, clean, corrupted, given.layers))
        read_texts(engine, cells[:2])  # the first run verifies the packed forward
        started = time.perf_counter()
        made = read_texts(engine, cells)
        seconds = {"engine": time.perf_counter() - started}
        ours = np.array([one.next_logprobs[0] if one.next_logprobs else np.nan for one in made])
        started = time.perf_counter()
        loop = np.array(plain(engine, cells))
        seconds["plain hooks"] = time.perf_counter() - started
        np.testing.assert_allclose(ours, loop, atol=1e-4)
        if given.transformer_lens is not None:
            found, seconds["TransformerLens"] = theirs(given.transformer_lens, folder, (clean, corrupted))
            np.testing.assert_allclose(ours.reshape(found.shape), found, atol=1e-4)
    speed = {name: len(cells) / took for name, took in seconds.items()}
    for name, one in speed.items():
        print(f"{name}: {one:.0f} cells/s")
    marks = [
        Mark(name=f"cells/s, of {name}'s", measured=speed["engine"] / one, at_least=10)
        for name, one in speed.items()
        if name != "engine"
    ]
    print_marks(marks)
    write_result(given.json, {"cells": len(cells), "cells/s": speed}, marks)


if __name__ == "__main__":
    main()
