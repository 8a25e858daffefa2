"""A chat beside a drain: how soon its first text comes, and what the drain loses to it.

    python -m bench.chat_beside_drain --model DIR --gsm8k FOLDER [--shape 50m] [--json FILE]

`actograph up` serves DIR, or random weights of `--shape` with its tokenizer and as many words. First one chat
a second is asked while nothing else runs. Then an evaluation of FOLDER/test.jsonl with attn_in and mlp_in of
every layer fills the slots, and windows with one chat a second and windows without any take turns. Chats are
streams of the openai package; a window's rate counts the tokens of the evaluation's samples that ended in it.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import openai
import psutil
import sqlalchemy as sa
import torch
from transformers import AutoTokenizer

from actograph.client import Client
from actograph.stack.up import up_process
from bench.drain import random_weights
from bench.lm_eval_speed import SHAPES
from bench.marks import Mark, median_and_quartiles, print_marks, write_result
from storage.index.database import Database
from storage.tables.models import SampleRow

MODEL = "bench"
EVERY_SECONDS = 1.0
#: until the slots are full and lengths are spread
WARM_UP_SECONDS = 15.0
CHAT_TOKENS = 16


def ask(client: openai.OpenAI, seconds: float, first: int) -> list[float]:
    """Ask a chat a second, or whenever the last one has ended. Returns seconds to each one's first text."""
    found, began = list[float](), time.perf_counter()
    while (sent := time.perf_counter()) < began + seconds:
        number = len(found)
        stream = client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": f"Tom has {first + number} apples. How many?"}],
            max_tokens=CHAT_TOKENS,
            temperature=1.0,
            seed=number,
            stream=True,
        )
        first_text = None
        for chunk in stream:
            if first_text is None and any(choice.delta.content for choice in chunk.choices):
                first_text = time.perf_counter() - sent
        found.append(time.perf_counter() - sent if first_text is None else first_text)
        time.sleep(max(0.0, sent + EVERY_SECONDS - time.perf_counter()))
    return found


def tokens_per_second(database: Database, job_id: str, start: float, stop: float) -> float:
    statement = sa.select(sa.func.sum(SampleRow.generated_tokens)).where(
        SampleRow.job_id == job_id, SampleRow.finished_at >= start, SampleRow.finished_at < stop
    )
    with database.read() as session:
        return int(session.scalar(statement) or 0) / (stop - start)


def measure(url: str, database: Database, arguments: argparse.Namespace) -> dict[str, Any]:
    window = arguments.window
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    with client, Client(url) as actograph:
        ask(client, 3, first=1000)  # the first chats warm up
        idle = ask(client, window, first=0)
        job = actograph.submit(
            {
                "kind": "evaluation",
                "model": MODEL,
                "dataset": {"path": str(arguments.gsm8k / "test.jsonl")},
                "epochs": 2,
                "sampling": {"temperature": 1.0, "max_tokens": arguments.max_tokens},
                "capture": {"points": ["attn_in", "mlp_in"], "layers": "all"},
            }
        )
        while actograph.jobs.get(job.id).progress.completed == 0:
            time.sleep(0.1)
        time.sleep(WARM_UP_SECONDS)
        beside, moments = list[float](), list[tuple[float, float, float]]()
        for number in range(arguments.rounds):
            start = time.time()
            time.sleep(window)
            middle = time.time()
            beside += ask(client, window, first=100 * number)
            moments.append((start, middle, time.time()))
        rates = [
            (tokens_per_second(database, job.id, a, b), tokens_per_second(database, job.id, b, c))
            for a, b, c in moments
        ]
        if actograph.jobs.get(job.id).status.is_terminal():
            raise SystemExit("the evaluation ended too soon; give more problems")
        actograph.jobs.cancel(job.id)
    return {
        "model": f"random weights, {arguments.shape}" if arguments.shape else arguments.model.name,
        "threads": arguments.threads,
        "slots": arguments.slots,
        "first_text_idle_s": _summary(idle),
        "first_text_beside_a_drain_s": _summary(beside),
        "tokens_per_second_of_the_drain": [{"alone": alone, "with_chats": both} for alone, both in rates],
        "share_left_to_the_drain": _summary([both / alone for alone, both in rates]),
    }


def _summary(values: Sequence[float]) -> dict[str, float]:
    middle, (low, high) = median_and_quartiles(values)
    return {"low": low, "median": middle, "high": high}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="model folder with a chat template")
    parser.add_argument("--gsm8k", type=Path, required=True, help="folder of test.jsonl")
    parser.add_argument("--shape", choices=list(SHAPES), help="random weights of this shape")
    parser.add_argument("--slots", type=int, default=16, help="live rows of the drain")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--window", type=float, default=20.0, help="seconds")
    parser.add_argument("--rounds", type=int, default=3, help="windows without chats, and as many with them")
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    arguments.gsm8k = arguments.gsm8k.resolve()
    with tempfile.TemporaryDirectory(prefix="actograph-bench-") as scratch:
        model: Path = arguments.model.resolve()
        if arguments.shape:
            model = Path(scratch) / "model"
            # every token must be text, or a chat's first text comes late
            words = len(AutoTokenizer.from_pretrained(arguments.model))
            shape = SHAPES[arguments.shape] | {"vocab_size": words}
            random_weights(arguments.model, model, torch.float32, shape, end_share=80)
        home = Path(scratch) / "home"
        options = [
            f"--model={MODEL}={model}", f"--home={home}", "--port=0", f"--threads={arguments.threads}",
            f"--data-root={arguments.gsm8k}",
        ]  # fmt: skip
        with up_process(options, {**os.environ, "ACTOGRAPH_SLOTS": str(arguments.slots)}) as url:
            database = Database(f"sqlite:///{home / 'actograph.db'}")
            result = measure(url, database, arguments)
            database.close()
    idle, beside = result["first_text_idle_s"], result["first_text_beside_a_drain_s"]
    left = result["share_left_to_the_drain"]
    marks = [
        Mark(
            name="first text beside a drain / idle",
            measured=beside["median"] / idle["median"],
            at_most=2.0,
            quartiles=(beside["low"] / idle["median"], beside["high"] / idle["median"]),
        ),
        Mark(
            name="tokens of the drain with one chat a second / without",
            measured=left["median"],
            at_least=0.9,
            quartiles=(left["low"], left["high"]),
        ),
    ]
    for name in ("first_text_idle_s", "first_text_beside_a_drain_s"):
        print(name, {key: round(value, 3) for key, value in result[name].items()})
    print_marks(marks)
    write_result(arguments.json, result, marks)


if __name__ == "__main__":
    main()
