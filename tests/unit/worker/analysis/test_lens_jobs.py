"""The lens as a job: a plain computation, resumption, and models that it must not read."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from actograph.contract.models import ModelIdentity, PinnedModel
from actograph.contract.resources import JobStatus
from storage.index.database import Database
from storage.jobs import jobs
from tests.support import leasing
from tests.support.analysed import Killed, WatchedStore, World, drain_of, insert_analysis, store_sessions
from worker.engine.model import weight_files

LAYERS, WIDTH, VOCABULARY, TOKENS = 2, 8, 30, 12
PARTS = ("embed", "attn_out.0", "mlp_out.0", "attn_out.1", "mlp_out.1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder without a tokenizer."""
    folder, generator = tmp_path / "model", np.random.default_rng(5)
    folder.mkdir()
    config = {"model_type": "llama", "num_hidden_layers": LAYERS, "rms_norm_eps": 1e-6}
    (folder / "config.json").write_text(json.dumps(config))
    weights = {"model.norm.weight": (WIDTH,), "lm_head.weight": (VOCABULARY, WIDTH)}
    arrays = {name: generator.normal(size=shape).astype(np.float32) for name, shape in weights.items()}
    save_file(arrays, folder / "model.safetensors")
    return folder


@pytest.fixture
def world(sqlite: Database, tmp_path: Path, folder: Path) -> World:
    return World(sqlite, tmp_path, model=f"demo={folder}")


@pytest.fixture
def stored() -> list[dict[str, NDArray[np.float32]]]:
    """Sessions whose last residual rows are the sums of their components and of something else."""
    generator, found = np.random.default_rng(6), []
    for _ in range(3):
        rows = {name: generator.normal(size=(TOKENS, WIDTH)).astype(np.float32) for name in PARTS}
        rest = generator.normal(size=(TOKENS, WIDTH)).astype(np.float32)
        rows["resid_post.0"] = sum((rows[name] for name in PARTS[:3]), rest)
        rows["resid_post.1"] = sum((rows[name] for name in PARTS[3:]), rows["resid_post.0"])
        found.append(rows)
    return found


def recorded(world: World, folder: Path, stored: Any, **changes: Any) -> str:
    """The sessions of a job that is pinned to the model in the folder."""
    job_id = store_sessions(world.database, world.store, stored)
    fields = {"model": "demo", "source": str(folder), "dtype": "float32", "tokenizer_sha256": "0"}
    digest = weight_files.fingerprint(weight_files.find(str(folder), None))
    identity = ModelIdentity.model_validate(fields | {"weights_sha256": digest} | changes)
    with world.database.write() as session:
        jobs.pin(session, job_id, PinnedModel(identity=identity))
    return job_id


def lines(world: World, job_id: str, name: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(world.files(job_id)[name].decode())))


def test_rows_are_read_as_a_plain_computation_reads_them(world: World, folder: Path, stored: Any) -> None:
    from actograph.analysis.files import read_arrays

    source = recorded(world, folder, stored)
    analysis = world.run(kind="lens", sessions={"jobs": [source]}, top=3, listed=20, token="next", against=4)
    found = world.result(analysis)
    weights = read_arrays(folder / "model.safetensors")
    norm, unembedding = weights["model.norm.weight"], weights["lm_head.weight"].astype(np.float64)

    def scale(rows: Any) -> Any:
        return np.sqrt((rows.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-6)

    following = np.arange(1, TOKENS)  # token ids are the positions
    for layer in range(LAYERS):
        rows = np.concatenate([one[f"resid_post.{layer}"] for one in stored])
        logits = rows / scale(rows) * norm @ unembedding.T
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        numbers = found["hooks"][f"resid_post.{layer}"]
        assert (numbers["rows"], numbers["agreement"] == 1) == (3 * TOKENS, layer == 1)
        known = logs.reshape(3, TOKENS, -1)[:, :-1]
        assert numbers["next_log_probability"] == pytest.approx(
            known[:, np.arange(TOKENS - 1), following].mean(), abs=1e-5
        )
        assert numbers["next_is_top"] == pytest.approx((known.argmax(axis=2) == following).mean())
        listed = [one for one in lines(world, analysis, "lens.csv") if one["hook"] == f"resid_post.{layer}"]
        best = np.argsort(-logits, axis=1)[:20, :3]
        assert [int(one["token"]) for one in listed] == best.ravel().tolist()
        assert [int(one["position"]) for one in listed[::3]] == [*range(TOKENS), *range(8)]
        chosen = np.take_along_axis(logs[:20], best, axis=1).ravel()
        assert [float(one["log_probability"]) for one in listed] == pytest.approx(chosen, abs=1e-5)
    direction = (unembedding[following] - unembedding[4]) * norm
    parts = {}
    for name in PARTS:
        each = [one[name][:-1] / scale(one["resid_post.1"])[:-1] * direction for one in stored]
        parts[name] = np.stack(each).sum(axis=2)
    for one in found["attribution"][:-1]:
        assert one["mean"] == pytest.approx(parts[one["component"]].mean(), rel=1e-5)
        assert one["mean_magnitude"] == pytest.approx(np.abs(parts[one["component"]]).mean(), rel=1e-5)
    assert [one["component"] for one in found["attribution"]] == [*PARTS, "rest"]
    logits = np.stack([one["resid_post.1"][:-1] / scale(one["resid_post.1"])[:-1] for one in stored])
    whole = (logits * direction).sum(axis=2)
    assert sum(one["mean"] for one in found["attribution"]) == pytest.approx(whole.mean(), rel=1e-5)
    shown = lines(world, analysis, "contributions.csv")
    sums = np.array([float(one["contribution"]) for one in shown]).reshape(20, -1).sum(axis=1)
    assert sums == pytest.approx(whole.ravel()[:20], rel=1e-4)


def test_a_killed_lens_resumes_with_the_listed_rows(world: World, folder: Path, stored: Any) -> None:
    body = {"kind": "lens", "sessions": {"jobs": [recorded(world, folder, stored)]}, "token": 3}
    undisturbed = world.run(**body)
    analysis, store = insert_analysis(world.database, body), WatchedStore(world.store)

    def kill() -> None:
        raise Killed

    # a session takes one read for its header, one for its token ids and one for each of seven hooks
    store.at, store.act = 2 * 9 + 4, kill
    with pytest.raises(Killed):
        drain_of(world.settings, world.database, store, "wrk_1", save_seconds=0).look()  # type: ignore[arg-type]
    before, store.at = len(store.read_keys), -1
    leasing.lose(world.database)
    drain_of(world.settings, world.database, store, "wrk_2", save_seconds=0).look()  # type: ignore[arg-type]
    assert len(store.read_keys) - before == 9, "only the last session is read again"
    first, second = (world.files(one) for one in (undisturbed, analysis))
    for name in ("result.json", "lens.csv", "contributions.csv"):
        assert first[name] == second[name]


def test_other_models_and_hooks_are_refused_with_the_reason(
    world: World, folder: Path, stored: Any, subtests: pytest.Subtests
) -> None:
    good = recorded(world, folder, stored)
    narrow = [{"resid_post.1": rows["resid_post.1"][:, :4]} for rows in stored]
    early = [{name: rows[name] for name in ("embed", "resid_post.0")} for rows in stored]
    for job_id, fields, says in [
        (recorded(world, folder, stored, model="other"), {}, "does not serve model 'other'; it serves demo"),
        (recorded(world, folder, stored, weights_sha256="1" * 64), {}, "recorded with 111111111111"),
        (store_sessions(world.database, world.store, stored), {}, "recorded with an unknown model"),
        (recorded(world, folder, narrow), {}, "resid_post.1 is 4 wide; the unembedding reads 8"),
        (recorded(world, folder, early), {"token": 1}, "resid_post.1 is not stored"),
        (good, {"token": VOCABULARY}, "token 30 is not in the vocabulary"),
        (good, {"hooks": ["embed"]}, "needs resid_pre, resid_mid or resid_post"),
    ]:
        with subtests.test(says=says):
            failed = world.job(world.run(kind="lens", sessions={"jobs": [job_id]}, **fields))
            assert failed.status == JobStatus.FAILED
            assert says in failed.error["message"]
    (folder / "model.safetensors").unlink()
    failed = world.job(world.run(kind="lens", sessions={"jobs": [good]}))
    assert "has no safetensors files" in failed.error["message"]
