"""An engine in a process of its own: the same tokens and rows as in this one, and what its end costs."""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actograph.contract.errors import CaptureFailed, DeviceLost, ModelRefused, WorkerStalled
from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.models import parse_served
from actograph.contract.row_selection import Stride
from actograph.contract.specs import SamplingSpec
from actograph.settings import Settings
from tests.support.engine_run import assert_same_logprobs
from tests.support.local_engine import ListedRun, LocalEngine, tensor_of
from tests.support.waiting import wait_until
from worker.engine.client import EngineProcess
from worker.engine.engine import Engine
from worker.engine.messages import (
    Capture,
    Edit,
    Readout,
    Request,
    Rows,
    RunOptions,
    StatisticsOptions,
    TokenRule,
)
from worker.process.work_rate import COUNTS
from worker.text.tokenizer import tokenizer_sha256

pytestmark = pytest.mark.integration

MODEL = "tiny-qwen3"
OPTIONS = RunOptions(slots=4, shard_bytes=1 << 12)
SAMPLED = SamplingSpec(temperature=0.9, top_p=0.9, max_tokens=24, presence_penalty=0.5, logit_bias={7: -1.0})


def settings_of(home: Path) -> Settings:
    return Settings(home=home, threads=1, slots=4)


@pytest.fixture(scope="module")
def process(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    made = EngineProcess(settings_of(tmp_path_factory.mktemp("home")))
    made.load(parse_served(f"{MODEL}={shared / 'models' / MODEL}"), ModelLoadOptions())
    yield made
    made.close()


class Kept:
    """Takes rows, and keeps what each hook of each request has."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, list[Rows]]] = {}

    def write(self, key: str, rows: Mapping[str, Rows]) -> None:
        for hook, chunk in rows.items():
            self.rows.setdefault(key, {}).setdefault(hook, []).append(chunk.copied())

    def joined(self, key: str) -> dict[str, tuple[torch.Tensor, list[int] | None, int | None]]:
        return {
            hook: (
                torch.cat([tensor_of(chunk) for chunk in chunks]),
                None if chunks[0].tokens is None else [t for chunk in chunks for t in chunk.tokens or ()],
                chunks[0].over,
            )
            for hook, chunks in self.rows[key].items()
        }


def members(structure: Any, prompt: tuple[int, ...]) -> list[Request]:
    """Requests that differ in one thing each."""
    hooks = tuple(structure.hooks)
    vector = np.linspace(-1, 1, structure.hidden_size, dtype=np.float32)
    rule = TokenRule(
        prompt=(0, 2),
        positions=Stride(stride=2),
        first_prompt=len(prompt),
        number=len(prompt),
    )
    base: dict[str, Any] = {
        "prompt_ids": prompt,
        "seed": 3,
        "sampling": SAMPLED,
        "capture": Capture(hooks=hooks),
    }
    changes: dict[str, dict[str, Any]] = {
        "plain": {},
        "nothing captured": {"capture": None},
        "only read": {"max_tokens": 0},
        "steered": {"edits": (Edit(hook="resid_post.1", op="add", vector=vector, positions="generated"),)},
        "by a rule": {"rule": rule},
        "columns": {"capture": Capture(hooks=hooks[:3], columns=(3, 1))},
        "one dtype": {"capture": Capture(hooks=hooks[:3], dtype="bfloat16")},
        "summed": {
            "capture": Capture(hooks=("resid_post.0",), reduce="mean", statistics=StatisticsOptions())
        },
        "logprobs": {"top_logprobs": 3, "score_prompt": True},
        "a chat": {"priority": True, "live": True},
    }
    return [Request(key=name, **base | change) for name, change in changes.items()]


def test_a_process_gives_the_tokens_and_rows_of_this_one(process: EngineProcess, engine: Engine) -> None:
    prompt = tuple(engine.model.tokenizer.encode("Tom has 3 apples and buys 4 more. How many?"))
    mine, theirs = Kept(), Kept()
    here = ListedRun(members(engine.structure, prompt), mine.write).through(LocalEngine(engine), OPTIONS)
    there = ListedRun(members(engine.structure, prompt), theirs.write).through(process, OPTIONS)
    for got, want in zip(there, here, strict=True):
        assert (got.key, got.generated_ids, got.finish_reason) == (
            want.key,
            want.generated_ids,
            want.finish_reason,
        )
        assert_same_logprobs(got.logprobs, want.logprobs)
        assert_same_logprobs(got.prompt_logprobs, want.prompt_logprobs)
    assert theirs.rows.keys() == mine.rows.keys() and len(mine.rows) == 9
    for key in mine.rows:
        got, want = theirs.joined(key), mine.joined(key)
        assert got.keys() == want.keys()
        for hook, (rows, tokens, over) in want.items():
            # requests meet in other passes there, which rounds differently
            torch.testing.assert_close(got[hook][0], rows, rtol=1e-3, atol=1e-3)
            assert got[hook][1:] == (tokens, over), (key, hook)


def test_vectors_stay_in_the_process_as_long_as_a_request_has_them(
    process: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests share each vector; 20 vectors in all, and never more than the requests in the process."""
    width = process.structure.hidden_size
    asked = [
        Request(
            key=str(i),
            prompt_ids=(5, 6 + i),
            seed=i,
            max_tokens=3,
            edits=(Edit(hook="resid_post.0", op="add", vector=np.full(width, i // 2, np.float32)),),
        )
        for i in range(40)
    ]
    held, most, sent = set[str](), 0, 0
    send = process._channel.send

    def watch(message: Mapping[str, Any], raw: bytes = b"", **options: Any) -> None:
        nonlocal most, sent
        match message["m"]:
            case "vector":
                held.add(message["name"])
                sent += 1
            case "forget vectors":
                held.difference_update(message["names"])
            case "request":
                assert held.issuperset(message["vectors"])
        most = max(most, len(held))
        send(message, raw, **options)

    monkeypatch.setattr(process._channel, "send", watch)
    made = ListedRun(asked).through(process, OPTIONS)
    assert not any(one.error for one in made)
    assert not held and 20 <= sent <= 40 and most <= 2 * OPTIONS.slots


def test_structure_and_tokenizer_cross_unchanged(process: EngineProcess, engine: Engine) -> None:
    without = {"identity": None, "kv_bytes_per_token": None, "model": "", "savepoints": {}}
    assert process.structure.model_copy(update=without) == engine.structure.model_copy(update=without)
    assert tokenizer_sha256(process.tokenizer) == tokenizer_sha256(engine.model.tokenizer)
    assert process.slots == 4
    numbers = process.memory()
    assert numbers["rss_bytes"] > 0 and numbers["run_bytes"] > 0


def test_it_tells_its_work_and_the_memory_of_its_devices(process: EngineProcess) -> None:
    before, began = process.memory(), time.monotonic()
    sampling = SamplingSpec(max_tokens=5, ignore_eos=True)
    asked = [Request(key=str(n), prompt_ids=(5, 6, 7), seed=0, sampling=sampling) for n in range(3)]
    made = ListedRun(asked).through(process, OPTIONS)
    after, took = process.memory(), 1000 * (time.monotonic() - began)
    told = {name: after[name] - before[name] for name in COUNTS}
    assert told["generated_tokens"] == sum(len(one.generated_ids) for one in made) == 15
    # a prompt that others share may be run once
    assert 3 + 3 * 4 <= told["computed_tokens"] <= 3 * (3 + 4)
    assert 0 <= told["pass_milliseconds"] <= took + 1
    assert 0 < after["device_used_bytes"] < after["device_total_bytes"]


def test_values_of_readouts_of_live_requests_cross_as_they_are_stored(
    process: EngineProcess, engine: Engine
) -> None:
    width, kept = engine.width_of("resid_post.1"), Kept()
    vectors = np.random.default_rng(0).normal(size=(2, width)).astype(np.float32)
    readouts = tuple(
        Readout(name=f"readout:{n}", hook=f"resid_post.{n}", sha256=str(n), vector=vectors[n])
        for n in range(2)
    )
    asked = [
        Request(
            key=str(n), prompt_ids=(5, 6, 7), seed=n, sampling=SAMPLED, live=n < 2,
            capture=Capture(hooks=(), readouts=readouts),
        )
        for n in range(3)
    ]  # fmt: skip
    run = ListedRun(asked, write=kept.write)
    made = run.through(process, OPTIONS)
    assert set(run.values) == {"0", "1"}, "of live ones alone"
    for one in made[:2]:
        told = run.values[one.key]
        assert [token for token, _ in told] == [*range(3, 3 + len(one.generated_ids) - 1)]
        for n in range(2):
            stored = kept.joined(one.key)[f"readout:{n}"][0].flatten().tolist()
            assert [values[f"readout:{n}"] for _, values in told] == stored[3:]


def test_one_request_fails_alone_for_its_sink_and_for_what_is_asked(process: EngineProcess) -> None:
    prompt = (5, 6, 7)
    capture = Capture(hooks=("resid_post.0",))
    sampling = SamplingSpec(max_tokens=4)

    def write(key: str, _rows: Mapping[str, Rows]) -> None:
        if key == "unstored":
            raise CaptureFailed("the store has no place")

    asked = [
        Request(key="good", prompt_ids=prompt, seed=0, sampling=sampling, capture=capture),
        Request(key="unstored", prompt_ids=prompt, seed=0, sampling=sampling, capture=capture),
        Request(key="no hook", prompt_ids=prompt, seed=0, capture=Capture(hooks=("nothing.7",))),
        Request(key="a bad edit", prompt_ids=prompt, seed=0, edits=(Edit(hook="resid_post.0", op="add"),)),
        Request(key="last", prompt_ids=prompt, seed=0, sampling=sampling, capture=capture),
    ]
    made = {one.key: one for one in ListedRun(asked, write).through(process, OPTIONS)}
    assert {key for key, one in made.items() if one.error is None} == {"good", "last"}
    assert isinstance(made["unstored"].error, CaptureFailed)
    assert "no place" in str(made["unstored"].error)
    assert "nothing.7" in str(made["no hook"].error)


def test_what_the_host_raises_ends_the_run_and_the_next_one_works(process: EngineProcess) -> None:
    class Failing(ListedRun):
        def done(self, generation: Any) -> None:
            raise ValueError("a bug of the host")

    asked = [Request(key=str(i), prompt_ids=(5, 6), seed=i) for i in range(3)]
    with pytest.raises(ValueError, match="a bug of the host"):
        Failing(asked).through(process, OPTIONS)
    assert len(ListedRun(asked).through(process, OPTIONS)) == 3


def test_a_refused_model_has_the_reason_and_the_process_goes_on(
    shared: Path, tmp_path: Path, engine: Engine
) -> None:
    process = EngineProcess(settings_of(tmp_path))
    try:
        with pytest.raises(ModelRefused, match=r"config\.json"):
            process.load(parse_served(f"empty={tmp_path}"), ModelLoadOptions())
        process.load(parse_served(f"{MODEL}={shared / 'models' / MODEL}"), ModelLoadOptions())
        assert process.structure.model == MODEL
    finally:
        process.close()


ENDS: dict[str, Callable[[EngineProcess], None]] = {
    "killed": lambda process: os.kill(process.pid, signal.SIGKILL),
    "stuck": lambda process: (os.kill(process.pid, signal.SIGSTOP), process.kill(WorkerStalled("stuck")))[1],
}


@pytest.mark.parametrize("end", ENDS)
def test_a_process_that_ends_in_a_run_loses_what_ran_and_nothing_else(
    shared: Path, tmp_path: Path, end: str
) -> None:
    process = EngineProcess(settings_of(tmp_path))
    process.load(parse_served(f"{MODEL}={shared / 'models' / MODEL}"), ModelLoadOptions())
    sampling = SamplingSpec(max_tokens=400, ignore_eos=True)
    short = Request(key="short", prompt_ids=(5, 6), seed=0, max_tokens=1)
    asked = [short, *(Request(key=str(i), prompt_ids=(5, 6), seed=i, sampling=sampling) for i in range(3))]
    run, raised = ListedRun(asked), list[Exception]()

    def follow() -> None:
        try:
            run.through(process, OPTIONS)
        except (DeviceLost, WorkerStalled) as error:
            raised.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    wait_until(lambda: "short" in run.made)
    ENDS[end](process)
    thread.join(60)
    assert set(run.made) == {"short"}
    assert type(raised[0]) is (DeviceLost if end == "killed" else WorkerStalled)
    process.close()


def test_requests_that_an_ended_process_never_had_are_cancelled_and_not_lost(
    shared: Path, tmp_path: Path
) -> None:
    process = EngineProcess(settings_of(tmp_path))
    process.load(parse_served(f"{MODEL}={shared / 'models' / MODEL}"), ModelLoadOptions())
    os.kill(process.pid, signal.SIGSTOP)
    threads = list(Path(f"/proc/{process.pid}/task").glob("*/stat"))
    # then it reads nothing more
    wait_until(lambda: {stat.read_text().rpartition(")")[2].split()[0] for stat in threads} == {"T"})
    run, raised = ListedRun([Request(key="late", prompt_ids=(5, 6), seed=0)]), list[Exception]()

    def follow() -> None:
        try:
            run.through(process, OPTIONS)
        except DeviceLost as error:
            raised.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    wait_until(lambda: run.exhausted)
    os.kill(process.pid, signal.SIGKILL)
    thread.join(60)
    assert raised
    assert (run.made["late"].finish_reason, run.made["late"].error) == ("cancelled", None)
    process.close()


def test_a_host_that_is_gone_takes_its_engine_along(shared: Path, tmp_path: Path) -> None:
    process = EngineProcess(settings_of(tmp_path))
    process._channel.close()  # as the kernel does at the end of a process
    wait_until(lambda: process.has_ended)
    process.close()


def test_a_host_loads_no_torch() -> None:
    import subprocess

    code = "import worker.__main__, sys; sys.exit('torch' in sys.modules or 'nnsight' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
