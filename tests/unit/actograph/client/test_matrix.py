"""Rows of many sessions as one matrix."""

import builtins
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actograph.client import Client
from actograph.client.errors import PackageMissing
from actograph.contract import base, models, resources
from actograph.contract.errors import InvalidRequest, MixedIdentities, NotFound

JOB = f"job_{1:032x}"
HOOK = "resid_post.1"


def rows_of(number: int) -> Any:
    return np.arange(28, dtype=np.float32).reshape(7, 4) + 100 * number


@pytest.fixture(params=["plain", "local"])
def client(request: pytest.FixtureRequest, sessions: list[resources.Session]) -> Client:
    found: Client = request.getfixturevalue(request.param)
    return found


def test_features_and_where_they_come_from(client: Client, subtests: pytest.Subtests) -> None:
    positions: Any
    for positions, taken in [
        ("last_prompt", [4]),
        ("last", [6]),
        ("all", [0, 1, 2, 3, 4, 5, 6]),
        ("generated", [5, 6]),
        ("think", [5]),
        ("answer", [6]),
        (2, [2]),
        (-1, [4]),
    ]:
        with subtests.test(positions=positions):
            matrix = client.jobs.get(JOB).matrix(HOOK, positions=positions)
            expected = np.concatenate([rows_of(number)[taken] for number in range(5)])
            assert matrix.features.dtype == np.float32
            assert np.array_equal(matrix.features, expected)
            assert matrix.tokens.tolist() == taken * 5
            each = len(taken)
            assert matrix.labels.tolist() == np.repeat([1.0, 1, 1, 0, 0], each).tolist()
            assert matrix.sample_index.tolist() == np.repeat(range(5), each).tolist()
            assert matrix.condition.tolist() == np.repeat(list("ababa"), each).tolist()
            ids = np.repeat([f"ses_{n:032x}" for n in range(5)], each).tolist()
            assert matrix.session_id.tolist() == ids
            assert matrix.skipped == []
            assert len(matrix) == 5 * each


def test_one_row_for_each_session(client: Client, subtests: pytest.Subtests) -> None:
    positions: Any
    reduce: Any
    for positions, reduce, expected in [
        ("all", "mean", [rows_of(n).mean(axis=0) for n in range(5)]),
        ("generated", "max", [rows_of(n)[5:7].max(axis=0) for n in range(5)]),
        ("prompt", "last", [rows_of(n)[4] for n in range(5)]),
    ]:
        with subtests.test(positions=positions):
            matrix = client.jobs.get(JOB).matrix(HOOK, positions=positions, reduce=reduce)
            assert np.array_equal(matrix.features, np.stack(expected))
            assert set(matrix.tokens.tolist()) == ({4} if reduce == "last" else {-1})


def test_chosen_tokens_and_summaries_are_found_by_their_tokens(client: Client) -> None:
    matrix = client.jobs.get(JOB).matrix("mlp_in.1", positions="last_prompt")
    assert matrix.features.dtype == np.float32, "float16 widened"
    assert np.array_equal(matrix.features, np.stack([rows_of(n)[4] for n in range(5)]))
    summary = client.jobs.get(JOB).matrix("mlp_out.1", positions="all", reduce="mean")
    assert np.array_equal(summary.features, np.stack([rows_of(n).mean(axis=0) for n in range(5)]))
    with pytest.raises(InvalidRequest, match="stored as the mean"):
        client.jobs.get(JOB).matrix("mlp_out.1", positions="last")


def test_numbers_of_experts_are_kept_but_not_averaged(client: Client) -> None:
    assert client.jobs.get(JOB).matrix("expert_indices.1").features.dtype == np.int64
    with pytest.raises(InvalidRequest, match="mean needs floats"):
        client.jobs.get(JOB).matrix("expert_indices.1", positions="all", reduce="mean")


def test_bfloat16_is_float32(client: Client) -> None:
    features = client.jobs.get(JOB).matrix("attn_in.1").features
    assert features.dtype == np.float32
    assert (features == 1).all()


def test_filters_limit_and_aliases(plain: Client, sessions: Any) -> None:
    assert set(plain.jobs.get(JOB).matrix("blocks.1.hook_resid_post", condition="b").condition) == {"b"}
    assert plain.jobs.get(JOB).matrix(HOOK, correct=False).sample_index.tolist() == [3, 4]
    assert plain.jobs.get(JOB).matrix(HOOK, limit=2, parallel=1).sample_index.tolist() == [0, 1]


def test_module_paths_are_looked_up_in_the_structure(service: Any, plain: Client, sessions: Any) -> None:
    path = "model.layers.1.output"
    service.structure = models.ModelStructure(
        model="demo", architecture="x", num_layers=2, hidden_size=4, vocab_size=9, context_length=9,
        dtype="float32", device="cpu", num_parameters=1, chat_template=False, eos_token_ids=[],
        hooks={HOOK: models.HookInfo(location=path, width=4, dtype="float32")}, module_locations=[path],
    )  # fmt: skip
    assert len(plain.jobs.get(JOB).matrix("model.layers[1].output")) == 5
    assert [seen.path for seen in service.seen].count("/v1/model/structure") == 1


def test_sessions_without_the_rows_are_told(service: Any, plain: Client, sessions: Any) -> None:
    short = sessions[1].model_copy(update={"prompt_tokens": 2, "generated_tokens": 1, "rows": 2})
    hooks = {HOOK: sessions[1].hooks[HOOK].model_copy(update={"shape": (2, 4)})}
    service.sessions[short.id] = short.model_copy(update={"hooks": hooks})
    service.sessions[sessions[2].id] = sessions[2].model_copy(update={"hooks": {}})
    matrix = plain.jobs.get(JOB).matrix(HOOK, positions=3)
    assert matrix.sample_index.tolist() == [0, 3, 4]
    assert [one.session_id for one in matrix.skipped] == [sessions[1].id, sessions[2].id]
    assert "no row at positions [3]" in matrix.skipped[0].reason
    assert "the session has none" in matrix.skipped[1].reason
    assert "2 sessions skipped" in repr(matrix)
    with pytest.raises(NotFound, match=r"no session gave rows of resid_post\.7"):
        plain.jobs.get(JOB).matrix("resid_post.7")
    with pytest.raises(NotFound, match="no session matches the filters"):
        plain.jobs.get(JOB).matrix(HOOK, condition="c")


def test_a_session_that_is_deleted_meanwhile_is_told(service: Any, plain: Client, sessions: Any) -> None:
    for name in list(service.tensors):
        if name[0] == sessions[0].id:
            del service.tensors[name]
    matrix = plain.jobs.get(JOB).matrix(HOOK)
    assert matrix.sample_index.tolist() == [1, 2, 3, 4]
    assert "has no tensor" in matrix.skipped[0].reason


def test_over_http_only_the_rows_that_are_wanted_travel(service: Any, plain: Client, sessions: Any) -> None:
    plain.jobs.get(JOB).matrix(HOOK, positions="last_prompt")
    read = [(s.path.split("/")[4], s.query["rows"]) for s in service.seen if "/tensors/" in s.path]
    assert sorted(read) == sorted((session.id, "4:5") for session in sessions)


def test_from_the_folder_only_the_rows_that_are_wanted_are_read(
    service: Any, local: Client, sessions: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    pread = os.pread

    def counted(fd: int, length: int, offset: int) -> bytes:
        data = pread(fd, length, offset)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counted)
    local.jobs.get(JOB).matrix(HOOK, positions="last")
    size = (store / "sessions" / sessions[0].id / "activations.safetensors").stat().st_size
    # each file's header (one read, here the whole small file), then the one row
    assert sorted(read) == sorted([size] * 5 + [16] * 5)
    assert not [seen for seen in service.seen if "/tensors/" in seen.path]


def test_memory_is_bounded(plain: Client, sessions: Any) -> None:
    with pytest.raises(InvalidRequest, match="max_bytes=64"):
        plain.jobs.get(JOB).matrix(HOOK, positions="last", max_bytes=64)
    assert len(plain.jobs.get(JOB).matrix(HOOK, positions="last", max_bytes=80)) == 5


def test_sessions_of_two_widths_are_refused(service: Any, plain: Client, sessions: Any) -> None:
    wide = sessions[4]
    service.tensors[wide.id, HOOK] = ("F32", np.zeros((7, 6), "<f4"))
    hooks = {HOOK: wide.hooks[HOOK].model_copy(update={"shape": (7, 6)})}
    service.sessions[wide.id] = wide.model_copy(update={"hooks": hooks})
    with pytest.raises(InvalidRequest, match="6 wide"):
        plain.jobs.get(JOB).matrix(HOOK)


def test_labels_are_the_scores_of_samples(service: Any, plain: Client, sessions: Any) -> None:
    service.samples[JOB] = [
        resources.Sample(
            id=f"smp_{n:032x}", job_id=JOB, index=n, status=resources.SampleStatus.COMPLETED, input={},
            scores={"exact_match,strict-match": resources.Score(value=n / 10)} if n != 2 else {},
        )
        for n in range(5)
    ]  # fmt: skip
    labels = plain.jobs.get(JOB).matrix(HOOK, label="exact_match,strict-match").labels
    assert labels[[0, 1, 3, 4]].tolist() == [0.0, 0.1, 0.3, 0.4]
    assert np.isnan(labels[2])
    with pytest.raises(InvalidRequest, match="there are correct, exact_match,strict-match"):
        plain.jobs.get(JOB).matrix(HOOK, label="f1")


def test_torch_and_pandas_on_request(plain: Client, sessions: Any) -> None:
    matrix = plain.jobs.get(JOB).matrix(HOOK)
    features, labels = matrix.torch()
    assert features.shape == (5, 4)
    assert labels.dtype == torch.float32
    frame = matrix.frame()
    assert list(frame.columns) == ["session_id", "sample_index", "condition", "epoch", "token", "label"]
    assert frame.label.sum() == 3


def test_samples_as_a_frame(service: Any, plain: Client, sessions: Any) -> None:
    service.samples[JOB] = [
        resources.Sample(
            id=f"smp_{n:032x}", job_id=JOB, index=n, condition="ab"[n % 2],
            status=resources.SampleStatus.COMPLETED if n else resources.SampleStatus.FAILED, input={},
            scores={"exact_match,strict-match": resources.Score(value=1.0)} if n else {},
            error=None if n else base.ErrorRecord(type="x", message="it broke"),
        )
        for n in range(3)
    ]  # fmt: skip
    frame = plain.jobs.get(JOB).frame()
    assert frame["index"].tolist() == [0, 1, 2]
    assert frame["status"].tolist() == ["failed", "completed", "completed"]
    assert frame["error"].tolist()[0] == "it broke"
    assert frame["exact_match,strict-match"].mean() == 1.0
    assert frame["exact_match,strict-match"].isna().tolist() == [True, False, False]


def test_a_package_that_is_missing_is_named(
    client: Client, monkeypatch: pytest.MonkeyPatch, service: Any
) -> None:
    def absent(name: str) -> Any:
        raise builtins.ModuleNotFoundError(f"No module named {name!r}")

    job = client.jobs.get(JOB)
    matrix = job.matrix(HOOK)
    monkeypatch.setattr("importlib.import_module", absent)
    service.seen.clear()
    with pytest.raises(PackageMissing, match="pip install pandas"):
        job.frame()
    with pytest.raises(PackageMissing, match="pip install torch"):
        matrix.torch()
    assert service.seen == []


def test_progress_counts_the_sessions_that_are_read(
    plain: Client, sessions: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    choices: list[tuple[dict[str, Any], int]] = [({}, 5), ({"condition": "a"}, 3), ({"limit": 2}, 2)]
    for wanted, total in choices:
        plain.jobs.get(JOB).matrix(HOOK, **wanted)
        assert capsys.readouterr().err == ""
        plain.jobs.get(JOB).matrix(HOOK, progress=True, **wanted)
        assert f"{total}/{total}" in capsys.readouterr().err.splitlines()[-1]


def test_sessions_of_different_models_are_not_mixed_by_accident(
    service: Any, plain: Client, sessions: Any
) -> None:
    for number, identity in enumerate(["a" * 64, "a" * 64, "b" * 64, "a" * 64, None]):
        one = sessions[number].model_copy(update={"identity_sha256": identity})
        service.sessions[one.id] = one
    with pytest.raises(MixedIdentities, match=r"aaaaaaaaaaaa and bbbbbbbbbbbb.*by the filters"):
        plain.jobs.get(JOB).matrix(HOOK)
    with pytest.raises(MixedIdentities, match="aaaaaaaaaaaa and unknown"):
        plain.jobs.get(JOB).matrix(HOOK, correct=False)
    assert len(plain.jobs.get(JOB).matrix(HOOK, limit=2)) == 2


def test_a_savepoint_is_that_of_the_job(service: Any, plain: Client, sessions: Any) -> None:
    service.jobs[JOB] = service.jobs[JOB].model_copy(update={"savepoints": {"late": HOOK}})
    matrix = plain.jobs.get(JOB).matrix("late")
    assert np.array_equal(matrix.features, plain.jobs.get(JOB).matrix(HOOK).features)
