"""What a sample's rows must be, counted apart from the engine, and values that are refused."""

import itertools
from pathlib import Path

import pytest
import torch

from actograph.contract import resources
from actograph.contract.errors import CaptureFailed
from actograph.contract.specs import CaptureSpec, SamplingSpec
from storage.artifacts.store import open_store
from storage.samples import LeasedSample
from storage.session_files import SessionReader
from worker.engine.requests import Generation, RowChunk
from worker.recording import Provenance, Recorded, UnitRecorder, expected_rows


@pytest.mark.parametrize(
    ("hook", "positions", "rows"),
    [
        ("resid_post.3", "all", (0, 14)),
        ("resid_post.3", "prompt", (0, 10)),
        ("resid_post.3", "generated", (10, 14)),
        ("resid_post.3", "last", (13, 14)),
        ("resid_post.3", "last_prompt", (9, 10)),
        ("logits", "all", (9, 14)),
        ("logits", "prompt", (9, 10)),
        ("logits", "generated", (10, 14)),
        ("logits", "last_prompt", (9, 10)),
    ],
)
def test_rows_of_ten_prompt_and_five_generated_tokens(
    hook: str, positions: str, rows: tuple[int, int]
) -> None:
    assert expected_rows(hook, positions, prompt=10, generated=5) == rows


def test_it_agrees_with_the_engine_everywhere() -> None:
    from worker.engine.row_writer import expected_rows as of_engine

    positions = ("all", "prompt", "generated", "last", "last_prompt")
    for where, prompt, generated in itertools.product(positions, (1, 2, 7), (1, 2, 5)):
        for hook, tail in (("resid_post.0", False), ("logits", True)):
            due = of_engine(where, prompt, generated, tail)  # type: ignore[arg-type]
            first, stop = expected_rows(hook, where, prompt, generated)
            assert stop - first == len(due)
            assert not due or first == due.start


def structure() -> resources.ModelStructure:
    return resources.ModelStructure(
        model="m", architecture="A", num_layers=1, hidden_size=4, vocab_size=9, context_length=64,
        dtype="float32", device="cpu", num_parameters=1, chat_template=False, eos_token_ids=[1],
        hooks={}, module_locations=[],
    )  # fmt: skip


def recorder(tmp_path: Path, hooks: list[str]) -> UnitRecorder:
    sample = LeasedSample(
        id="smp_" + "1" * 32, job_id="job_" + "1" * 32, sample_index=3, condition="baseline", epoch=0,
        input={}, seed=5, token=1,
    )  # fmt: skip
    origin = Provenance(
        structure=structure(), tokenizer_sha256="t", template_sha256=None, capture=CaptureSpec(),
        hooks=hooks, sampling=SamplingSpec(),
    )  # fmt: skip
    return UnitRecorder(open_store((tmp_path / "store").as_uri()), [sample], origin)


GENERATION = Generation(key="k", prompt_ids=(5, 6), generated_ids=(7, 1), finish_reason="stop")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_chunks_become_a_session_with_the_same_values(tmp_path: Path, dtype: torch.dtype) -> None:
    rows = torch.arange(12).view(3, 4).to(dtype)
    unit = recorder(tmp_path, ["resid_post.0"])
    unit.write(0, {"resid_post.0": RowChunk(0, rows[:2].clone())})
    unit.write(0, {"resid_post.0": RowChunk(2, rows[2:].clone())})
    outcome = unit.finish({0: GENERATION})[0]
    assert isinstance(outcome, Recorded)
    assert outcome.rows == 3
    reader = SessionReader(open_store((tmp_path / "store").as_uri()), outcome.session_id)
    reader.verify()
    stored = reader.rows("resid_post.0", 0, 3)
    assert torch.equal(torch.frombuffer(bytearray(stored.data), dtype=dtype).view(3, 4), rows)
    assert list(reader.token_ids()) == [5, 6, 7, 1]
    assert reader.manifest.finish_reason == "stop"
    assert set(reader.manifest.versions) == {"actograph", "torch", "transformers", "nnsight"}


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_refused_with_its_place(tmp_path: Path, bad: float) -> None:
    rows = torch.zeros(3, 4)
    rows[1, 2] = bad
    with pytest.raises(CaptureFailed, match=r"resid_post\.0: token 6"):
        recorder(tmp_path, ["resid_post.0"]).write(0, {"resid_post.0": RowChunk(5, rows)})


def test_large_finite_values_whose_sum_overflows_are_kept(tmp_path: Path) -> None:
    rows = torch.full((3, 4), 3e38)
    unit = recorder(tmp_path, ["resid_post.0"])
    unit.write(0, {"resid_post.0": RowChunk(0, rows)})
    assert isinstance(unit.finish({0: GENERATION})[0], Recorded)


def test_missing_rows_or_a_missing_hook_or_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    store = tmp_path / "store" / "sessions"
    short = recorder(tmp_path, ["resid_post.0"])
    short.write(0, {"resid_post.0": RowChunk(0, torch.zeros(2, 4))})
    assert isinstance(short.finish({0: GENERATION})[0], CaptureFailed)
    partial = recorder(tmp_path, ["resid_post.0", "embed"])
    partial.write(0, {"resid_post.0": RowChunk(0, torch.zeros(3, 4))})
    assert isinstance(partial.finish({0: GENERATION})[0], CaptureFailed)
    nothing = recorder(tmp_path, ["resid_post.0"])
    assert isinstance(nothing.finish({0: GENERATION})[0], CaptureFailed)
    assert not store.exists() or not [p for p in store.iterdir() if p.name.startswith("ses_")]


def test_reset_forgets_what_an_abandoned_attempt_wrote(tmp_path: Path) -> None:
    unit = recorder(tmp_path, ["resid_post.0"])
    unit.write(0, {"resid_post.0": RowChunk(0, torch.ones(2, 4))})
    unit.reset(0)
    unit.write(0, {"resid_post.0": RowChunk(0, torch.zeros(3, 4))})
    outcome = unit.finish({0: GENERATION})[0]
    assert isinstance(outcome, Recorded)
    assert outcome.tensors["resid_post.0"].shape == [3, 4]
