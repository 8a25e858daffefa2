"""All figures of one GPU, in one call of at most six minutes.

    python -m bench.gpu --json bench/results/gpu.json
    python -m bench.gpu --device cpu --shapes tiny --seconds 1    # does the program work?

Random weights in the shapes of Qwen3-0.6B and Qwen3-8B in bfloat16, in the engine's own process as a worker
runs it, with 128 prompts and answers of GSM8K's lengths that come again and again. A case has a number of
live requests, eager or replayed decode passes, and captures nothing, three layers, or all layers x 2 points.
It is a short and a long run, and the difference counts: what a run does once, such as its first prompts and
the capture of its graphs, cancels out. With all captured and most live requests: bytes a second into a file,
chats beside the drain against chats alone, and memory in use against the plan. Then replayed passes against
eager ones, of every number of rows that has a graph: tokens and rows have to have the same bits. In the end,
on the same weights: `generate` with plain hooks, and lm-eval's hf backend (`bench.gpu_rivals`), if lm-eval is
installed here or in `.venv-lm-eval`.

The share of the roofline is the least time of the long run's work, by the memory's bandwidth and the speed of
matrix products measured on the same device, over the time that it took. Weights and the keys and values of
each request are read once in a pass; each token costs two operations for each weight.

The program keeps `--minutes`: each case has an equal share, and what no longer fits is named in `left_out`.
"""

import argparse
import hashlib
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np

from actograph.contract import hooks as grammar
from actograph.contract.errors import ActographError, WorkerStalled
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.models import parse_served
from actograph.contract.specs import SamplingSpec
from actograph.demo import MODEL_DIR
from actograph.settings import Settings
from bench.gpu_rivals import LM_EVAL
from bench.marks import REPO, Mark, print_marks, write_result
from bench.shapes import QWEN3_06B, QWEN3_8B
from bench.time_budget import TimeBudget
from evals.plans import run_memory
from worker.engine.client import EngineProcess
from worker.engine.messages import Capture, Generation, Request, Rows, RunOptions, RunStatistics

TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "vocab_size": 512,
}
SHAPES = {"0.6b": QWEN3_06B, "8b": QWEN3_8B, "tiny": TINY}
CAPTURES = ("nothing", "3 layers x 2", "all layers x 2")
POINTS = ["attn_in", "mlp_in"]
#: of a run that only opens its captures
OPENING_SECONDS = 0.1
#: tokens at the deciles of GSM8K's 1,319 test questions as chats and of their answers (SmolLM2's tokenizer)
PROMPT_TOKENS = (58, 72, 77, 83, 88, 93, 99, 105, 113, 127, 223)
ANSWER_TOKENS = (29, 65, 80, 91, 104, 117, 133, 148, 170, 200, 415)
PROMPTS = 128
CONTEXT = 4096
#: seconds that a case takes beside its two runs
OVERHEAD = 0.5
#: tokens of the requests that compare replayed passes with eager ones
SHORT_PROMPT, SHORT_ANSWER = 2, 4
#: tokens of each answer of the rivals: GSM8K's mean
RIVAL_ANSWER = 128
#: seconds in which a rival's process imports torch and loads the model of 0.6B
RIVAL_START = 15.0
#: seconds between a chat's end and the next one
PAUSE = 0.1
LEAST_ROOFLINE, LEAST_OF_NOTHING, LEAST_LIVE = 0.5, 0.8, 64
LEAST_OF_LM_EVAL, MOST_OF_PLAN = 5.0, 1.1
#: the environment that `bench.lm_eval_speed` and the tests make for lm-eval
LM_EVAL_PYTHON = REPO / ".venv-lm-eval" / "bin" / "python"
#: rivals, which count as so many cases
RIVALS = 2
Figures = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement of the pace."""

    live: int
    replayed: bool
    captured: str

    @property
    def name(self) -> str:
        return f"{self.live} live, {'replayed' if self.replayed else 'eager'}, {self.captured}"


@dataclass(frozen=True, kw_only=True)
class Roof:
    """Limits of a device: bytes and operations a second."""

    bytes: float
    operations: float


def lengths() -> list[tuple[int, int]]:
    """Tokens of each prompt and of its answer."""
    draw = random.Random(0)

    def drawn(deciles: Sequence[int]) -> int:
        return round(float(np.interp(draw.random() * 10, range(11), deciles)))

    return [(drawn(PROMPT_TOKENS), drawn(ANSWER_TOKENS)) for _ in range(PROMPTS)]


class Timed:
    """A run without an end that stops itself: source, control, results and sink.

    Args:
        capture: of every request; None: nothing.
        seconds: from the first look for requests to the stop.
        drains: whether there are requests beside the chats.
        chats: whether there is always one chat, or a pause between two.
        file: takes the rows; by default they are counted and dropped.
    """

    def __init__(
        self,
        vocabulary: int,
        capture: Capture | None,
        seconds: float,
        *,
        drains: bool = True,
        chats: bool = False,
        file: Any = None,
    ) -> None:
        self._requests = self._endless(vocabulary, capture)
        self._drains, self._chats, self._seconds, self._file = drains, chats, seconds, file
        self._draw, self._vocabulary = random.Random(1), vocabulary
        self._end: float | None = None
        self._chat: tuple[str, float] | None = None
        self._tokens: Sequence[int] = ()
        self._next_chat = 0.0
        self.first_texts: list[float] = []
        self.row_bytes = 0
        self.errors: list[str] = []

    def _ids(self, vocabulary: int, length: int, draw: random.Random) -> tuple[int, ...]:
        return tuple(draw.randrange(vocabulary) for _ in range(length))

    def _endless(self, vocabulary: int, capture: Capture | None) -> Iterator[Request]:
        draw, made = random.Random(2), lengths()
        for number in count():
            prompt, answer = made[number % PROMPTS]
            yield Request(
                key=str(number),
                prompt_ids=self._ids(vocabulary, prompt, draw),
                seed=number,
                sampling=SamplingSpec(temperature=0.0, max_tokens=answer),
                capture=capture,
            )

    @property
    def exhausted(self) -> bool:
        return False

    def pull(self, room: int, *, urgent: int, wait: float) -> list[Request]:
        self._end = self._end or time.monotonic() + self._seconds
        taken = [next(self._requests) for _ in range(room)] if self._drains else []
        if self._chats and urgent and self._chat is None and time.monotonic() >= self._next_chat:
            key = f"chat-{len(self.first_texts)}"
            prompt = self._ids(self._vocabulary, PROMPT_TOKENS[5], self._draw)
            chat = Request(key=key, prompt_ids=prompt, seed=0, max_tokens=8, priority=True, live=True)
            self._chat, self._tokens = (key, time.monotonic()), ()
            taken.append(chat)
        return taken

    def stopped(self) -> bool:
        self._look()
        return self._end is not None and time.monotonic() >= self._end

    def _look(self) -> None:
        """Note a chat's first text. Each message of the engine makes the host look."""
        if self._chat is not None and self._tokens:
            key, began = self._chat
            if len(self.first_texts) == int(key.removeprefix("chat-")):
                self.first_texts.append(time.monotonic() - began)

    def dropped(self, key: str) -> bool:
        return False

    def beat(self) -> None: ...

    def valued(self, key: str, token: int, values: Mapping[str, float]) -> None: ...

    def started(self, key: str, generated_ids: Sequence[int]) -> None:
        if self._chat is not None and key == self._chat[0]:
            self._tokens = generated_ids

    def done(self, generation: Generation) -> None:
        if generation.error is not None:
            self.errors.append(f"{generation.key}: {generation.error}")
        if self._chat is not None and generation.key == self._chat[0]:
            self._tokens = self._tokens or generation.generated_ids
            self._look()
            self._chat, self._next_chat = None, time.monotonic() + PAUSE

    def write(self, key: str, rows: Mapping[str, Rows]) -> None:
        for chunk in rows.values():
            for piece in chunk.pieces:
                self.row_bytes += piece.nbytes
                if self._file is not None:
                    self._file.write(piece.data)


class Waves:
    """A run of groups of equal requests, one group after the other: source, control, results and sink.

    Attributes:
        made: of each request by its key, a digest of its tokens and of all its rows.
    """

    def __init__(self, vocabulary: int, capture: Capture | None, sizes: Sequence[int]) -> None:
        draw = random.Random(3)
        self._waves = [
            [
                Request(
                    key=f"{size}-{i}",
                    prompt_ids=tuple(draw.randrange(vocabulary) for _ in range(SHORT_PROMPT)),
                    seed=i,
                    sampling=SamplingSpec(temperature=0.0, max_tokens=SHORT_ANSWER, ignore_eos=True),
                    capture=capture,
                )
                for i in range(size)
            ]
            for size in sizes
        ]
        self._rows: dict[str, dict[str, Any]] = {}
        self._running = 0
        self.made: dict[str, tuple[tuple[int, ...], tuple[tuple[str, str], ...]]] = {}

    @property
    def exhausted(self) -> bool:
        return not self._waves

    def pull(self, room: int, *, urgent: int, wait: float) -> list[Request]:
        if self._running or not self._waves or room < len(self._waves[0]):
            return []
        wave = self._waves.pop(0)
        self._running = len(wave)
        return wave

    def stopped(self) -> bool:
        return False

    def dropped(self, key: str) -> bool:
        return False

    def beat(self) -> None: ...

    def started(self, key: str, generated_ids: Sequence[int]) -> None: ...

    def valued(self, key: str, token: int, values: Mapping[str, float]) -> None: ...

    def write(self, key: str, rows: Mapping[str, Rows]) -> None:
        digests = self._rows.setdefault(key, {})
        for hook, chunk in rows.items():
            digest = digests.setdefault(hook, hashlib.blake2b(digest_size=8))
            for piece in chunk.pieces:
                digest.update(piece.tobytes())

    def done(self, generation: Generation) -> None:
        if generation.error is not None:
            raise RuntimeError(f"{generation.key}: {generation.error}")
        found = self._rows.pop(generation.key, {})
        rows = tuple((hook, digest.hexdigest()) for hook, digest in sorted(found.items()))
        self.made[generation.key] = generation.generated_ids, rows
        self._running -= 1


class Bench:
    """One loaded shape and its measurements."""

    def __init__(self, engine: EngineProcess, made: Mapping[str, int], roof: Roof, live: int) -> None:
        self._engine, self._made, self._roof, self._live = engine, made, roof, live
        structure = engine.structure
        every = tuple(grammar.expand(POINTS, "all", [], structure))
        three = tuple(grammar.expand(POINTS, None, [], structure))
        self._captures = dict(zip(CAPTURES, (None, Capture(hooks=three), Capture(hooks=every)), strict=True))
        self.resting = engine.memory()
        self._peak = 0

    def _run(self, case: Case, seconds: float, **more: Any) -> tuple[Timed, RunStatistics, float]:
        vocabulary = self._made["vocabulary"]
        timed = Timed(vocabulary, self._captures[case.captured], seconds, **more)
        options = RunOptions(slots=case.live, cuda_graphs=case.replayed)
        began = time.monotonic()
        ran = self._engine.run(source=timed, control=timed, results=timed, sink=timed, options=options)
        if timed.errors:
            raise RuntimeError(f"{len(timed.errors)} requests failed: {timed.errors[0]}")
        self._peak = max(self._peak, self._engine.memory()["run_peak_bytes"])
        return timed, ran, time.monotonic() - began

    def pace(self, case: Case, seconds: float) -> Figures:
        """Tokens a second, and the share of the roofline."""
        self._run(case, OPENING_SECONDS)  # its graphs are captured, and serve the others
        short, before, start = self._run(case, seconds / 5)
        long, ran, whole = self._run(case, seconds * 4 / 5)
        took = whole - start
        generated = ran.generated - before.generated
        read = (ran.computed - ran.generated) - (before.computed - before.generated)
        least = self._least_seconds(case.live, generated, max(0, read))
        return asdict(case) | {
            "seconds": round(took, 3),
            "generated": generated,
            "passes": ran.passes - before.passes,
            "tokens_per_second": round(generated / took, 1),
            "share_of_roofline": round(least / took, 4),
            "row_bytes_per_second": round((long.row_bytes - short.row_bytes) / took),
        }

    def _least_seconds(self, live: int, generated: int, read: int) -> float:
        """Least seconds to generate and read so many tokens."""
        made = self._made
        held = statistics.mean(prompt + answer / 2 for prompt, answer in lengths())
        of_keys = live * held * (self._engine.structure.kv_bytes_per_token or 0)
        by_bytes = (made["weight_bytes"] + of_keys) / self._roof.bytes
        by_operations = live * 2 * made["weights"] / self._roof.operations
        decoding = generated / live * max(by_bytes, by_operations)
        return decoding + read * 2 * made["weights"] / self._roof.operations

    def disk(self, case: Case, seconds: float) -> Figures:
        """Bytes a second of rows into a file."""
        with tempfile.TemporaryFile(prefix="actograph-bench-") as file:
            timed, _, took = self._run(case, seconds, file=file)
            began = time.monotonic()
            file.flush()
            os.fsync(file.fileno())
            took += time.monotonic() - began
        return {"bytes": timed.row_bytes, "bytes_per_second": round(timed.row_bytes / took)}

    def chat(self, case: Case, seconds: float) -> Figures:
        """First text of chats alone and beside a drain, and what the drain loses to them."""
        alone, _, _ = self._run(replace(case, captured="nothing"), seconds / 3, drains=False, chats=True)
        _, without, first = self._run(case, seconds / 3)
        beside, with_chats, second = self._run(case, seconds / 3, chats=True)
        rates = [without.generated / first, with_chats.generated / second]
        found = {"alone": alone.first_texts, "beside": beside.first_texts}
        middle = {name: statistics.median(times) if times else None for name, times in found.items()}
        return {
            "first_text_seconds": middle,
            "chats": {name: len(times) for name, times in found.items()},
            "drain_keeps": round(rates[1] / rates[0], 4) if rates[0] else None,
        }

    def equality(self, *, replays: bool) -> list[Figures]:
        """Requests whose tokens and rows have the same bits replayed and eager, by the rows of a pass.

        Args:
            replays: False: both runs are eager, to try the program.
        """
        from worker.engine.packed.decoding import _BUCKETS  # torch, which the other figures do without

        sizes = [size for size in _BUCKETS if size <= self._live]
        found = []
        for name, capture in self._captures.items():
            runs = [self._waves(capture, sizes, replayed=replayed) for replayed in (False, replays)]
            pairs = {key: (one, runs[1][key]) for key, one in runs[0].items()}
            for size in sizes:
                own = [pair for key, pair in pairs.items() if key.startswith(f"{size}-")]
                found.append(
                    {
                        "captured": name,
                        "rows_of_a_pass": size,
                        "requests": len(own),
                        "same_tokens": sum(one[0] == other[0] for one, other in own),
                        "same_rows": sum(one[1] == other[1] for one, other in own),
                    }
                )
        return found

    def _waves(self, capture: Capture | None, sizes: Sequence[int], *, replayed: bool) -> Mapping[str, Any]:
        waves = Waves(self._made["vocabulary"], capture, sizes)
        options = RunOptions(slots=self._live, cuda_graphs=replayed)
        self._engine.run(source=waves, control=waves, results=waves, sink=waves, options=options)
        return waves.made

    def memory(self, row_bytes: int) -> Figures:
        """Peak of all runs beyond the loaded model, beside the plan of a run."""
        now, on_gpu = self._engine.memory(), "cuda_peak_bytes" in self.resting
        plan = run_memory(
            self.resting["run_bytes"],
            token_bytes=self._engine.structure.kv_bytes_per_token or 1,
            slots=self._live,
            context=CONTEXT,
            row_bytes=row_bytes,
            on_gpu=on_gpu,
        )
        # a CPU's pass is not measured
        planned = plan.total + now["pass_bytes"] if on_gpu else plan.for_keys + plan.for_rows
        return {
            "peak_beyond_the_model": self._peak - self.resting["load_after_bytes"],
            "planned": planned,
            "resting": self.resting,
            "in_the_end": now,
        }


def make(shape: Mapping[str, int], folder: Path, device: str) -> dict[str, int]:
    """A model folder with random weights in bfloat16. Returns the sizes of what a pass reads."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    config = Qwen3Config(
        **shape,  # type: ignore[arg-type]
        max_position_embeddings=CONTEXT, bos_token_id=None, eos_token_id=None, initializer_range=0.05,
    )  # fmt: skip
    with torch.device(device):
        model: Any = Qwen3ForCausalLM(config)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(MODEL_DIR).save_pretrained(folder)
    # of the embedding a pass reads single rows
    weights = sum(one.numel() for one in model.parameters()) - model.get_input_embeddings().weight.numel()
    return {"weights": weights, "weight_bytes": 2 * weights, "vocabulary": shape["vocab_size"]}


def measure_roof(device: str) -> dict[str, float]:
    """Bytes a second of a copy, read and written, and operations a second of a bfloat16 product."""
    import torch

    on_gpu = device.startswith("cuda")
    data = torch.ones((1 << 30) if on_gpu else (1 << 24), dtype=torch.bfloat16, device=device)
    size = 8192 if on_gpu else 512
    square = torch.ones((size, size), dtype=torch.bfloat16, device=device)
    target, product = torch.empty_like(data), torch.empty_like(square)

    def best(work: Callable[[], object]) -> float:
        taken = []
        for _ in range(6):
            if on_gpu:
                torch.cuda.synchronize()
            began = time.perf_counter()
            work()
            if on_gpu:
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - began)
        return min(taken)

    moved = 2 * data.nbytes / best(lambda: target.copy_(data))
    return {"bytes": moved, "operations": 2 * size**3 / best(lambda: torch.mm(square, square, out=product))}


def in_process(words: Sequence[str], budget: TimeBudget) -> dict[str, Any]:
    """The JSON that this program prints in a process of its own, which gives its memory back."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu", *words],
        cwd=REPO, check=True, stdout=subprocess.PIPE, text=True, timeout=max(1.0, budget.left),
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def cases_of(live: Sequence[int], *, on_gpu: bool) -> list[Case]:
    """The cases of a shape, those that say most first. A CPU replays nothing."""
    modes = (True, False) if on_gpu else (False,)
    order = sorted(live, key=lambda number: (number < LEAST_LIVE, -number))
    return [
        Case(live=number, replayed=replayed, captured=captured)
        for replayed in modes
        for number in order
        for captured in (CAPTURES[0], CAPTURES[2], CAPTURES[1])
    ]


def measure_shape(
    shape: str, folder: Path, roof: Roof, live: Sequence[int], *, device: str, budget: TimeBudget, after: int
) -> Figures:
    """All figures of one shape.

    Args:
        after: cases of the shapes that follow.
    """
    on_gpu = device.startswith("cuda")
    cases, most = cases_of(live, on_gpu=on_gpu), max(live)
    began = time.monotonic()
    made = in_process(["--device", device, "--make", shape, str(folder)], budget)
    settings = Settings(home=folder, device=device, dtype="bfloat16", slots=most, cuda_graphs=on_gpu)
    engine = EngineProcess(settings)
    # an engine that hangs ends with the budget
    watch = threading.Timer(budget.left, engine.kill, [WorkerStalled("the time of the bench is over")])
    watch.daemon = True
    watch.start()
    paces: list[Figures] = []
    found: Figures = {"sizes": made, "paces": paces}
    try:
        engine.load(parse_served(f"bench={folder}"), ModelLoadOptions())
        found["load_seconds"] = round(time.monotonic() - began, 1)
        print(f"{shape}: made and loaded in {found['load_seconds']} s", flush=True)
        bench = Bench(engine, made, roof, most)
        full = Case(live=most, replayed=on_gpu, captured=CAPTURES[2])
        further: dict[str, Callable[[Case, float], Any]] = {
            "disk": bench.disk,
            "chat": bench.chat,
            "equality": lambda _case, _seconds: bench.equality(replays=on_gpu),
        }
        waiting = len(cases) + len(further) + RIVALS + after
        for name, measure in further.items():
            share = budget.share(f"{shape}: {name}", waiting, OVERHEAD)
            waiting -= 1
            if share is not None:
                found[name] = measure(full, share)
                print(f"{shape}: {name}: {_shown(found[name])}", flush=True)
        for case in cases:
            share = budget.share(f"{shape}: {case.name}", waiting, OVERHEAD)
            waiting -= 1
            if share is not None:
                paces.append(bench.pace(case, share))
                shown = {key: paces[-1][key] for key in ("tokens_per_second", "share_of_roofline")}
                print(f"{shape}: {case.name}: {shown}", flush=True)
        found["memory"] = bench.memory(RunOptions().row_bytes)
    except (ActographError, RuntimeError) as error:
        found["trouble"] = f"{type(error).__name__}: {error}"
        print(f"{shape}: {found['trouble']}", flush=True)
    finally:
        watch.cancel()
        engine.close()
    share = budget.share(f"{shape}: rivals", RIVALS + after, RIVAL_START)
    if share is not None:
        found["rivals"] = measure_rivals(folder, device, most, share * RIVALS, budget)
        for name, one in found["rivals"].items():
            print(f"{shape}: {name}: {one}", flush=True)
            if "left_out" in one:
                budget.left_out[f"{shape}: {name}"] = one["left_out"]
    return found


def _shown(figures: Any) -> Any:
    """Figures for the terminal: of a comparison, how many cases are equal."""
    if not isinstance(figures, list):
        return figures
    return f"{sum(is_equal(one) for one in figures)} of {len(figures)} cases have the same bits"


def is_equal(one: Figures) -> bool:
    """Whether a case of the comparison has equal tokens and rows."""
    return bool(one["same_tokens"] == one["same_rows"] == one["requests"])


def measure_rivals(folder: Path, device: str, batch: int, seconds: float, budget: TimeBudget) -> Figures:
    """Tokens a second of what a user would run instead, in a process of its own."""
    python, site = sys.executable, []
    if importlib.util.find_spec("lm_eval") is None and LM_EVAL_PYTHON.exists():
        python, site = str(LM_EVAL_PYTHON), [sysconfig.get_paths()["purelib"]]
    draw = random.Random(4)
    prompts = [[draw.randrange(500) for _ in range(prompt)] for prompt, _ in lengths()]
    done = subprocess.run(
        [python, "-m", "bench.gpu_rivals", str(folder), device, str(batch), str(seconds), *site],
        input=json.dumps({"prompts": prompts, "max_tokens": RIVAL_ANSWER}),
        cwd=REPO, capture_output=True, text=True, check=False,
        timeout=max(1.0, budget.left),
    )  # fmt: skip
    if done.returncode:
        return {"rivals": {"trouble": done.stderr[-2000:]}}
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def marks_of(shape: str, found: Figures) -> list[Mark]:
    """The marks of a shape on a GPU, from 64 live requests on."""
    marks = []
    by_case = {(one["live"], one["replayed"], one["captured"]): one for one in found["paces"]}
    for (live, replayed, captured), one in by_case.items():
        if live < LEAST_LIVE or captured == CAPTURES[1]:
            continue
        name = f"{shape}, {live} live, {'replayed' if replayed else 'eager'}"
        if captured == CAPTURES[0]:
            share = one["share_of_roofline"]
            marks.append(Mark(name=f"{name}: share of roofline", measured=share, at_least=LEAST_ROOFLINE))
        elif (plain := by_case.get((live, replayed, CAPTURES[0]))) and plain["tokens_per_second"]:
            ratio = one["tokens_per_second"] / plain["tokens_per_second"]
            marks.append(Mark(name=f"{name}: all / nothing", measured=ratio, at_least=LEAST_OF_NOTHING))
    marks += [
        Mark(
            name=f"{shape}, {captured}: replayed passes with the bits of eager ones",
            measured=statistics.mean(is_equal(one) for one in own),
            at_least=1.0,
        )
        for captured in CAPTURES
        if (own := [one for one in found.get("equality", ()) if one["captured"] == captured])
    ]
    rival = found.get("rivals", {}).get(LM_EVAL, {}).get("tokens_per_second")
    kept = [one["tokens_per_second"] for one in found["paces"] if one["captured"] == CAPTURES[2]]
    if rival and kept:
        ratio = max(kept) / rival
        marks.append(Mark(name=f"{shape}: all captured / lm-eval", measured=ratio, at_least=LEAST_OF_LM_EVAL))
    if memory := found.get("memory"):
        ratio = memory["peak_beyond_the_model"] / memory["planned"]
        marks.append(Mark(name=f"{shape}: peak of memory / plan", measured=ratio, at_most=MOST_OF_PLAN))
    return marks


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to try the program")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["0.6b", "8b"])
    parser.add_argument("--live", nargs="+", type=int, default=[1, 16, 64, 128], help="live requests")
    parser.add_argument("--seconds", type=float, default=8.0, help="most seconds of one case")
    parser.add_argument("--minutes", type=float, default=5.75, help="of everything")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--make", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--roof", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.make:
        print(json.dumps(make(SHAPES[options.make[0]], Path(options.make[1]), options.device)))
        return 0
    if options.roof:
        print(json.dumps(measure_roof(options.device)))
        return 0
    budget = TimeBudget(60 * options.minutes, options.seconds)
    roof = Roof(**in_process(["--device", options.device, "--roof"], budget))
    on_gpu = options.device.startswith("cuda")
    each = len(cases_of(options.live, on_gpu=on_gpu)) + 3 + RIVALS
    found: dict[str, Figures] = {}
    for place, shape in enumerate(options.shapes):
        after = (len(options.shapes) - place - 1) * each
        with tempfile.TemporaryDirectory(prefix="actograph-bench-") as folder:
            try:
                found[shape] = measure_shape(
                    shape, Path(folder), roof, options.live, device=options.device, budget=budget, after=after
                )
            except (subprocess.SubprocessError, OSError) as error:
                found[shape] = {"paces": [], "trouble": f"{type(error).__name__}: {error}"}
    marks = [mark for shape, one in found.items() if on_gpu for mark in marks_of(shape, one)]
    print_marks(marks)
    for name, reason in budget.left_out.items():
        print(f"left out: {name}: {reason}")
    result = {
        "device": options.device,
        "roof": asdict(roof),
        "prompts": PROMPTS,
        "shapes": found,
        "left_out": budget.left_out,
    }
    write_result(options.json, result, marks)
    return int(any("trouble" in one for one in found.values()))


if __name__ == "__main__":
    sys.exit(main())
