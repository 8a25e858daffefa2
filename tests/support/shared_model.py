"""Engines of several ranks: starting and ending them, and requests that differ in one thing each."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.models import ModelStructure, parse_served
from actograph.contract.row_selection import Stride, TokenRange
from actograph.contract.specs import SamplingSpec
from actograph.settings import Settings
from tests.support.engine_run import assert_same_logprobs
from tests.support.local_engine import ListedRun, tensor_of
from worker.engine.client import EngineClient, EngineProcess
from worker.engine.messages import (
    Capture,
    Edit,
    Generation,
    Readout,
    ReadoutLimit,
    Request,
    Rows,
    RunOptions,
    TokenRule,
)

#: fewer slots than requests, so that some begin while others run
OPTIONS = RunOptions(slots=5, shard_bytes=1 << 12)


def asked_of(structure: ModelStructure) -> list[Request]:
    """Requests of a model with at least 3 layers."""
    vector = np.linspace(-1, 1, structure.hidden_size, dtype=np.float32)
    begin = tuple((5 * i) % 500 + 4 for i in range(40))
    rule = TokenRule(prompt=(0, 2), positions=Stride(stride=2), first_prompt=len(begin), number=len(begin))

    def steered(*edits: Edit) -> dict[str, Any]:
        return {"edits": edits}

    add = Edit(hook="resid_post.0", op="add", coefficient=2.0, vector=vector)
    readout = Readout(name="readout:r", hook="resid_post.1", sha256="r", bias=0.5, vector=vector)
    at_once = ReadoutLimit(name=readout.name, above=-1e9)
    read = {"capture": Capture(hooks=tuple(structure.hooks), readouts=(readout,))}
    changes: dict[str, dict[str, Any]] = {
        "plain": {},
        "another prompt": {"prompt_ids": begin[3:17]},
        "one token": {"prompt_ids": begin[:1]},
        "greedy": {"sampling": SamplingSpec(max_tokens=24, temperature=0.0, ignore_eos=True)},
        "nothing captured": {"capture": None},
        "only read": {"max_tokens": 0},
        "a chat": {"priority": True},
        "logprobs": {"top_logprobs": 3, "score_prompt": True},
        "by a rule": {"rule": rule},
        "added": steered(add),
        "added late": steered(Edit(hook="resid_post.1", op="add", vector=vector, positions="generated")),
        "added by norm": steered(
            Edit(
                hook="resid_post.0", op="add_row_norm", coefficient=0.5, vector=vector, positions="generated"
            )
        ),
        "scaled": steered(Edit(hook="attn_out.1", op="scale", coefficient=0.5)),
        "zeroed": steered(Edit(hook="mlp_out.0", op="zero")),
        "projected": steered(Edit(hook="resid_pre.2", op="project_out", vector=vector)),
        "at the embedding": steered(Edit(hook="embed", op="add", vector=vector)),
        "read out": read,
        "ended by a readout": read | {"stops": (at_once,)},
        "added after a readout": read | steered(replace(add, after=at_once)),
        "several": steered(add, Edit(hook="resid_post.0", op="scale", coefficient=0.5), add),
    }
    put = Edit(hook="resid_pre.1", op="replace", vector=vector, positions=TokenRange(start=3, stop=4))
    changes["patched"] = steered(put) | {"max_tokens": 0, "capture": None, "next_tokens": (5, 9)}
    base: dict[str, Any] = {
        "prompt_ids": begin,
        "seed": 3,
        "sampling": SamplingSpec(max_tokens=24, temperature=0.9, top_p=0.9, ignore_eos=True),
        "capture": Capture(hooks=tuple(structure.hooks)),
    }
    return [Request(key=name, **base | change) for name, change in changes.items()]


class Answers:
    """Generations and rows of an engine."""

    def __init__(self, engine: EngineClient, requests: list[Request], options: RunOptions = OPTIONS) -> None:
        self._rows: dict[tuple[str, str], list[torch.Tensor]] = {}
        self.made = ListedRun(requests, self._write).through(engine, options)

    def _write(self, key: str, rows: Mapping[str, Rows]) -> None:
        for hook, chunk in rows.items():
            self._rows.setdefault((key, hook), []).append(tensor_of(chunk.copied()))

    def rows(self) -> dict[tuple[str, str], torch.Tensor]:
        """Rows by request and hook."""
        return {key: torch.cat(parts) for key, parts in self._rows.items()}


def assert_alike(got: Answers, want: Answers) -> None:
    """Equal tokens; log probabilities and rows that differ by rounding alone."""
    for one, other in zip(got.made, want.made, strict=True):
        assert one.error is None, (one.key, one.error)
        assert (one.key, one.generated_ids) == (other.key, other.generated_ids)
        assert one.finish_reason == other.finish_reason
        assert_same_logprobs(one.logprobs, other.logprobs)
        assert_same_logprobs(one.prompt_logprobs, other.prompt_logprobs)
        assert (one.next_logprobs is None) == (one.key != "patched")
        assert one.next_logprobs == (other.next_logprobs and pytest.approx(other.next_logprobs, abs=1e-4))
    rows, due = got.rows(), want.rows()
    assert rows.keys() == due.keys() and rows
    for key, tensor in due.items():
        torch.testing.assert_close(
            rows[key], tensor, rtol=1e-4, atol=1e-4, msg=lambda text, key=key: f"{key}: {text}"
        )


def started(folder: Path, home: Path, *, repeatable: bool = False) -> EngineProcess:
    """An engine of two ranks with the model in a folder."""
    settings = Settings(home=home, threads=2, slots=5, tensor_parallel=2, repeatable=repeatable)
    process = EngineProcess(settings)
    process.load(parse_served(f"m={folder}"), ModelLoadOptions(dtype="float32"))
    return process


def others_of(process: EngineProcess) -> list[psutil.Process]:
    """The ranks beside rank 0."""
    return psutil.Process(process.pid).children()


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def running(process: EngineProcess, end: Callable[[], None]) -> None:
    """Run requests, and call `end` when the first one has ended and others run. Raises what the run does."""
    sampling = SamplingSpec(max_tokens=100, ignore_eos=True)
    short = Request(key="short", prompt_ids=(5, 6), seed=0, max_tokens=1)
    asked = [short, *(Request(key=str(i), prompt_ids=(5, 6), seed=i, sampling=sampling) for i in range(99))]

    class Ending(ListedRun):
        def done(self, generation: Generation) -> None:
            super().done(generation)
            if generation.key == "short":
                end()

    Ending(asked).through(process, OPTIONS)
