"""Cells of activation patching per second: the engine, a loop of plain hooks, and TransformerLens.

    python -m bench.patching --tokenizer FOLDER [--layers 12 --width 256] [--tokens 32] [--json FILE]

A model of random weights in GPT-2's shape reads two prompts that differ in one token, at half of their length
unless `--differs` says otherwise. Each cell puts a row of the clean run into the corrupted one, at one layer
and position of `resid_pre` and `mlp_out`, and reads the log probability of a token. The engine gets the
requests that a patch job sends, for a few pairs. The loop runs one forward a cell, with a hook for the row.
TransformerLens, if `--transformer-lens` names its Python, runs its own `get_act_patch_*`. All metrics must be
equal to 1e-4. Seconds are those of the processor, and the least of some rounds in turns.
"""

import argparse
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import psutil
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config

from actograph.contract.patching import PatchGrid
from bench.marks import Mark, print_marks, write_result
from tests.support.engine_run import read_texts
from tests.support.plain_forward import plain_rows
from tests.support.transformer_lens import PROGRAM
from worker.engine.engine import Engine
from worker.engine.messages import Request
from worker.engine.model.load import load_model
from worker.sample.patch_cells import Cell, PairCells

POINTS = ("resid_pre", "mlp_out")
ANSWER = 300


def cells_of(engine: Engine, clean: list[int], corrupted: list[int], layers: int) -> PairCells:
    """The cells of a pair."""
    hooks = {(point, layer): f"{point}.{layer}" for point in POINTS for layer in range(layers)}
    rows = plain_rows(engine, clean, list(hooks.values()))
    return PairCells(
        grid=PatchGrid(points=POINTS, layers=tuple(range(layers)), hooks=hooks, heads=None),
        structure=engine.structure,
        positions={str(token): ([token], [token]) for token in range(len(clean))},
        rows={name: found.numpy() for name, found in rows.items()},
        alike=next(i for i, (one, other) in enumerate(zip(clean, corrupted, strict=True)) if one != other),
    )


def requests(cells: PairCells, corrupted: list[int], pair: int) -> Iterator[tuple[Request, Sequence[Cell]]]:
    """The requests of a pair, each with its cells: first the baseline, which has none."""
    read = Request(key=f"{pair}", prompt_ids=tuple(corrupted), seed=0, max_tokens=0, next_tokens=(ANSWER,))
    yield read, ()
    for some in cells.together(len(corrupted)):
        yield replace(read, variants=tuple(cell.edits for cell in some)), some


def patched(engine: Engine, cells: PairCells, corrupted: list[int], pairs: int) -> np.ndarray:
    """The metric of each cell, of several pairs that are the same, [pairs, points, layers, positions]."""
    asked = [(pair, *one) for pair in range(pairs) for one in requests(cells, corrupted, pair)]
    found = np.full((pairs, *cells.shape), np.nan)
    for (pair, _, some), made in zip(asked, read_texts(engine, [one for _, one, _ in asked]), strict=True):
        assert made.error is None and made.next_logprobs is not None, made.error
        if not some:
            found[pair][:, :, cells.unchanged] = made.next_logprobs[0]
        for cell, (value,) in zip(some, made.variant_logprobs or (), strict=True):
            found[pair][cell.place] = value
    return found


def plain(engine: Engine, cells: PairCells, corrupted: list[int]) -> np.ndarray:
    """The metric of all cells, one forward each."""
    hf: Any = engine.model.hf
    ids, found = torch.tensor([corrupted]), np.empty(cells.shape)
    for at in np.ndindex(*cells.shape):
        point, block, token = POINTS[at[0]], hf.transformer.h[at[1]], at[2]
        row = torch.from_numpy(cells.rows[f"{point}.{at[1]}"][token])

        def put(tensor: Any, token: int = token, row: Any = row) -> Any:
            tensor[0, token] = row
            return tensor

        if point == "resid_pre":
            handle = block.register_forward_pre_hook(lambda _, args, put=put: (put(args[0]), *args[1:]))
        else:
            handle = block.mlp.register_forward_hook(lambda _, __, out, put=put: put(out))
        with torch.inference_mode():
            logits = hf(ids, use_cache=False).logits[0, -1]
        handle.remove()
        found[at] = float(logits.log_softmax(-1)[ANSWER])
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
    parser.add_argument("--differs", type=int, help="number of the token that differs")
    parser.add_argument("--pairs", type=int, default=4, help="pairs of the engine's run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--transformer-lens", type=Path, help="a Python that has it")
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--json", type=Path, help="write the result here")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clean = [3 + place % 200 for place in range(given.tokens)]
    differs = given.tokens // 2 if given.differs is None else given.differs
    corrupted = [*clean[:differs], 400, *clean[differs + 1 :]]
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        config = GPT2Config(
            vocab_size=512, n_embd=given.width, n_layer=given.layers, n_head=8, bos_token_id=1, eos_token_id=1
        )
        model: Any = AutoModelForCausalLM
        model.from_config(config).save_pretrained(folder)
        AutoTokenizer.from_pretrained(given.tokenizer).save_pretrained(folder)
        engine = Engine(load_model(folder, device="cpu", name="patched"))
        cells = cells_of(engine, clean, corrupted, given.layers)
        patched(engine, cells, corrupted, 1)  # the first run verifies the packed forward
        seconds = {"engine": np.inf, "plain hooks": np.inf}
        for _ in range(given.rounds):
            started = time.process_time()
            ours = patched(engine, cells, corrupted, given.pairs)
            between = time.process_time()
            loop = plain(engine, cells, corrupted)
            ended = time.process_time()
            seconds["engine"] = min(seconds["engine"], (between - started) / given.pairs)
            seconds["plain hooks"] = min(seconds["plain hooks"], ended - between)
            np.testing.assert_allclose(ours, np.broadcast_to(loop, ours.shape), atol=1e-4)
        if given.transformer_lens is not None:
            found, seconds["TransformerLens"] = theirs(given.transformer_lens, folder, (clean, corrupted))
            np.testing.assert_allclose(ours[0], found, atol=1e-4)
    count = int(np.prod(cells.shape))
    speed = {name: count / took for name, took in seconds.items()}
    for name, one in speed.items():
        print(f"{name}: {one:.0f} cells/s of a processor")
    marks = [
        Mark(name=f"cells/s, of {name}'s", measured=speed["engine"] / one, at_least=10)
        for name, one in speed.items()
        if name != "engine"
    ]
    print_marks(marks)
    write_result(given.json, {"cells": count, "cells/s": speed}, marks)


if __name__ == "__main__":
    main()
