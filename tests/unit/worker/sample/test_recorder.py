"""From chunks of rows to a stored session, and values that are refused."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from actograph.client.stored_session import open_folder
from actograph.contract.errors import CaptureFailed, StoreDamaged
from actograph.contract.models import HookInfo, ModelIdentity
from actograph.contract.specs import CaptureSpec, SamplingSpec
from storage.artifacts.factory import open_store
from storage.queue.leases import LeasedSample
from storage.sessions.writer import INDEX_FILE, SessionReader
from tests.support.local_engine import rows as as_rows
from tests.support.one_turn import one_turn
from tests.support.structures import model_structure
from worker.engine.capture.host_rows import rows_of
from worker.engine.capture.selection import encoded
from worker.engine.messages import Generation
from worker.sample.provenance import Provenance
from worker.sample.recorder import SampleRecorder, _packages_of, library_versions
from worker.text.segments import Markup

LOGITS = HookInfo(location="lm_head.output", width=4, dtype="float32", tail_only=True)


class NoMarks:
    """A tokenizer of which only the marks are asked: it spells them with two unknown tokens."""

    all_special_ids: tuple[int, ...] = ()
    added_tokens_decoder: Mapping[int, Any] = MappingProxyType({})

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return [3, 4]

    def decode(self, ids: list[int], **_: bool) -> str:
        return "x" * len(ids)


def recorder(tmp_path: Path, hooks: list[str], **spec: Any) -> SampleRecorder:
    sample = LeasedSample(
        id="smp_" + "1" * 32, job_id="job_" + "1" * 32, sample_index=3, condition="baseline", epoch=0,
        input={}, seed=5, token=1, session_id="ses_" + "1" * 32,
    )  # fmt: skip
    origin = Provenance(
        structure=model_structure({"logits": LOGITS}), tokenizer_sha256="t", template_sha256=None,
        capture=CaptureSpec(**spec), hooks=hooks, markup=Markup(NoMarks()),  # type: ignore[arg-type]
    )  # fmt: skip
    return SampleRecorder(open_store((tmp_path / "store").as_uri()), sample, origin, sampling=SamplingSpec())


GENERATION = one_turn(
    Generation(key="k", prompt_ids=(5, 6), generated_ids=(7, 1), finish_reason="stop"),
    Markup(NoMarks()),  # type: ignore[arg-type]
)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32], ids=str
)
def test_chunks_become_a_session_with_the_same_values(tmp_path: Path, dtype: torch.dtype) -> None:
    rows = torch.arange(12).view(3, 4).to(dtype)
    sample = recorder(tmp_path, ["resid_post.0"])
    sample.write({"resid_post.0": as_rows(rows[:1].clone())})
    sample.write({"resid_post.0": rows_of((rows[1:2].clone(), rows[2:].clone()), 1)})
    outcome = sample.finish(GENERATION)
    assert outcome.rows == 3
    reader = SessionReader(open_store((tmp_path / "store").as_uri()), outcome.session_id)
    reader.verify()
    stored = reader.rows("resid_post.0", 0, 3)
    assert torch.equal(torch.frombuffer(bytearray(stored.data), dtype=dtype).view(3, 4), rows)
    assert list(reader.token_ids()) == [5, 6, 7, 1]
    assert reader.manifest.finish_reason == "stop"
    assert set(reader.manifest.versions) == {"actograph", "torch", "transformers", "nnsight"}


def test_rows_with_scales_become_a_session_of_several_files(tmp_path: Path) -> None:
    rows = torch.tensor([[448.0, -1.0, 0.5, 0.0], [0.0, 0.0, 0.0, 0.0], [-7.0, 3.5, 28.0, 1e-9]])
    data = encoded(rows)
    sample = recorder(tmp_path, ["resid_post.0"])
    sample.write({"resid_post.0": rows_of((data[:1].clone(),))})
    sample.write({"resid_post.0": rows_of((data[1:2].clone(), data[2:].clone()), 1)})
    outcome = sample.finish(GENERATION)
    info = outcome.tensors["resid_post.0"]
    assert (info.dtype, info.shape, info.nbytes) == ("F8_E4M3", (3, 4), 3 * (4 + 4))
    store = open_store((tmp_path / "store").as_uri())
    reader = SessionReader(store, outcome.session_id)
    reader.verify()
    assert len(reader.manifest.files) == 3, "two shards and their index"
    for stored in (reader.rows("resid_post.0", 0, 3), reader.layout("resid_post.0").rows(0, 3)):
        assert stored.dtype == "F32"
        found = torch.frombuffer(bytearray(stored.data), dtype=torch.float32).view(3, 4)
        torch.testing.assert_close(found, rows, rtol=1e-6, atol=1e-6)
    local = open_folder(tmp_path / "store" / "sessions" / outcome.session_id)
    assert list(local) == ["resid_post.0"]
    np.testing.assert_allclose(local["resid_post.0"][1:], rows[1:], rtol=1e-6, atol=1e-6)
    index = json.loads(b"".join(store.stream(f"sessions/{outcome.session_id}/{INDEX_FILE}")))
    assert index["metadata"]["total_size"] == 3 * 8 + 4 * 8
    scales = reader.manifest.tensors["resid_post.0"].scales
    assert [one.name for one in scales] == ["resid_post.0.scale[0:1]", "resid_post.0.scale[1:3]"]


def test_the_versions_name_what_made_the_weights() -> None:
    plain = ModelIdentity(model="m", source="s", weights_sha256="0", dtype="float32", tokenizer_sha256="1")
    for fields, names in (
        ({}, ()),
        ({"adapter": "org/sad"}, ("peft",)),
        ({"quantization": "compressed-tensors"}, ("compressed-tensors",)),
        ({"quantization": "fp8"}, ()),
    ):
        assert _packages_of(plain.model_copy(update=fields)) == names
        assert set(library_versions(names)) == {"actograph", "torch", "transformers", "nnsight", *names}


def test_files_without_the_scales_of_their_rows_are_damaged(tmp_path: Path) -> None:
    bits = torch.ones(2, 4).to(torch.float8_e4m3fn)
    save_file({"resid_post.0": bits, "token_ids": torch.tensor([5, 6])}, tmp_path / "a.safetensors")
    with pytest.raises(StoreDamaged, match=r"resid_post.0: its 2 rows of F8_E4M3 lack their scales"):
        open_folder(tmp_path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_not_finite_is_refused_with_its_place(tmp_path: Path, bad: float) -> None:
    rows = torch.zeros(3, 4)
    rows[1, 2] = bad
    with pytest.raises(CaptureFailed, match=r"resid_post\.0: token 6"):
        chunk = rows_of((rows[:1], rows[1:]), 5)
        recorder(tmp_path, ["resid_post.0"]).write({"resid_post.0": chunk})
    with pytest.raises(CaptureFailed, match=r"resid_post\.0: token 6"):
        chunk = rows_of((encoded(rows[:1]), encoded(rows[1:])), 5)
        recorder(tmp_path, ["resid_post.0"]).write({"resid_post.0": chunk})


def test_large_finite_values_whose_sum_overflows_are_kept(tmp_path: Path) -> None:
    rows = torch.full((3, 4), 3e38)
    sample = recorder(tmp_path, ["resid_post.0"])
    sample.write({"resid_post.0": as_rows(rows)})
    assert sample.finish(GENERATION).rows == 3


def test_missing_rows_or_a_missing_hook_or_nothing_at_all_is_an_error(tmp_path: Path) -> None:
    store = tmp_path / "store" / "sessions"
    short = recorder(tmp_path, ["resid_post.0"])
    short.write({"resid_post.0": as_rows(torch.zeros(2, 4))})
    with pytest.raises(CaptureFailed):
        short.finish(GENERATION)
    short.reset()
    partial = recorder(tmp_path, ["resid_post.0", "embed"])
    partial.write({"resid_post.0": as_rows(torch.zeros(3, 4))})
    with pytest.raises(CaptureFailed):
        partial.finish(GENERATION)
    partial.reset()
    nothing = recorder(tmp_path, ["resid_post.0"])
    with pytest.raises(CaptureFailed):
        nothing.finish(GENERATION)
    nothing.reset()
    assert not store.exists() or not [p for p in store.iterdir() if p.name.startswith("ses_")]


def test_reset_forgets_what_an_abandoned_attempt_wrote(tmp_path: Path) -> None:
    sample = recorder(tmp_path, ["resid_post.0"])
    sample.write({"resid_post.0": as_rows(torch.ones(2, 4))})
    sample.reset()
    sample.write({"resid_post.0": as_rows(torch.zeros(3, 4))})
    outcome = sample.finish(GENERATION)
    assert outcome.tensors["resid_post.0"].shape == (3, 4)


@pytest.mark.parametrize("tokens", [(0, 1), (0, 3)])
def test_rows_of_other_tokens_than_were_chosen_are_an_error(tmp_path: Path, tokens: tuple[int, int]) -> None:
    sample = recorder(tmp_path, ["resid_post.0"], positions={"stride": 2})
    sample.write({"resid_post.0": as_rows(torch.zeros(2, 4), tokens[0], tokens=tokens)})
    with pytest.raises(CaptureFailed, match="unexpected tokens"):
        sample.finish(GENERATION)
