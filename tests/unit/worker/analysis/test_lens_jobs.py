"""The lens as a job: a plain computation, resumption, and models that it must not read."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import ByteLevel

from actograph.analysis.checkpoint import Checkpoint
from actograph.contract.models import ModelIdentity, PinnedModel
from actograph.contract.resources import JobStatus
from storage.index.database import Database
from storage.jobs import jobs
from storage.tables.models import SessionRow
from tests.support import leasing
from tests.support.analysed import Killed, WatchedStore, World, drain_of, insert_analysis, store_sessions
from tests.support.checkpoints import InProcess, save_random
from worker.engine.model import weight_files

LAYERS, WIDTH, VOCABULARY, TOKENS = 2, 8, 30, 12
POINTS = ("resid_pre.0", "resid_mid.0", "resid_post.0", "resid_mid.1", "resid_post.1")
PARTS = ("embed", "attn.0", "mlp.0", "attn.1", "mlp.1", "bias")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model's folder without a tokenizer."""
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=12, num_hidden_layers=LAYERS, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=VOCABULARY, tie_word_embeddings=False, bos_token_id=1,
        eos_token_id=1,
    )  # fmt: skip
    save_random(config, tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    return tmp_path / "model"


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.analysis.lens.ModelEnd", InProcess)


@pytest.fixture
def world(sqlite: Database, tmp_path: Path, folder: Path) -> World:
    return World(sqlite, tmp_path, model=f"demo={folder}")


@pytest.fixture
def stored() -> list[dict[str, NDArray[np.float32]]]:
    """Rows at each point of the residual stream."""
    generator = np.random.default_rng(6)
    return [
        {name: generator.normal(size=(TOKENS, WIDTH)).astype(np.float32) for name in POINTS} for _ in range(3)
    ]


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
    last = np.stack([one["resid_post.1"][:-1] for one in stored])
    points = np.stack([[one[name][:-1] for one in stored] for name in POINTS]).astype(np.float64)
    parts = np.diff(points, axis=0, prepend=0) / scale(last.reshape(-1, WIDTH)).reshape(3, -1, 1)
    due = dict(zip(PARTS, (parts * direction).sum(axis=3), strict=False)) | {"bias": np.zeros(1)}
    assert [one["component"] for one in found["attribution"]] == list(PARTS)
    for one in found["attribution"]:
        assert one["mean"] == pytest.approx(due[one["component"]].mean(), rel=1e-5, abs=1e-9)
        assert one["mean_magnitude"] == pytest.approx(np.abs(due[one["component"]]).mean(), rel=1e-5)
    whole = (last / scale(last.reshape(-1, WIDTH)).reshape(3, -1, 1) * direction).sum(axis=2)
    shown = lines(world, analysis, "contributions.csv")
    sums = np.array([float(one["contribution"]) for one in shown]).reshape(20, -1).sum(axis=1)
    assert sums == pytest.approx(whole.ravel()[:20], rel=1e-4)


def test_a_session_is_read_as_a_grid_of_layers_and_positions(
    world: World, folder: Path, stored: Any, subtests: pytest.Subtests
) -> None:
    from actograph.contract.analyses import LensResult

    recorded(world, folder, stored)
    with world.database.read() as session:
        first, _, last = session.scalars(sa.select(SessionRow.id).order_by(SessionRow.sample_index))
    for ids, shown in [([last], 2), ([first, last], 0)]:
        with subtests.test(ids=ids):
            analysis = world.run(kind="lens", sessions={"ids": ids}, positions="all")
            found = LensResult.model_validate(world.result(analysis))
            assert found.grid is not None
            assert (found.sessions, found.grid.session_id) == (len(ids), ids[0])
            assert found.grid.positions == list(range(TOKENS))
            assert found.grid.inputs == [str(token) for token in range(TOKENS)]
            for hook in ("resid_post.0", "resid_post.1"):
                logits = Checkpoint(folder).logits(stored[shown][hook]).astype(float)
                best = logits.argmax(axis=1)
                assert found.grid.tokens[hook] == [str(token) for token in best]
                shares = np.exp(logits.max(axis=1)) / np.exp(logits).sum(axis=1)
                assert found.grid.probabilities[hook] == pytest.approx(shares, rel=1e-5)
            text = str(found)
            assert text.index("resid_post.1", text.index("tokens on top")) < text.rindex("resid_post.0")
            assert {"lens_grid.png", "lens_grid.svg", "lens.png"} <= set(world.files(analysis))


def test_stored_logits_are_compared_with_the_lens_of_the_last_layer(
    world: World, folder: Path, stored: Any
) -> None:
    logits = [Checkpoint(folder).logits(rows["resid_post.1"]) for rows in stored]
    good = [rows | {"logits": values} for rows, values in zip(stored, logits, strict=True)]
    analysis = world.run(kind="lens", sessions={"jobs": [recorded(world, folder, good)]})
    assert world.job(analysis).error is None
    assert world.result(analysis)["compared_rows"] == 8
    bad = [rows | {"logits": values + 0.1} for rows, values in zip(stored, logits, strict=True)]
    failed = world.job(world.run(kind="lens", sessions={"jobs": [recorded(world, folder, bad)]}))
    assert "differs from the stored logits of session" in failed.error["message"]
    without = world.run(kind="lens", sessions={"jobs": [recorded(world, folder, stored)]})
    assert world.result(without)["compared_rows"] == 0


def test_components_are_what_lies_between_stored_points(
    world: World, folder: Path, stored: Any, subtests: pytest.Subtests
) -> None:
    for names, due in [
        (("resid_pre.0", "resid_post.0", "resid_post.1"), ["embed", "layer.0", "layer.1"]),
        (
            ("resid_mid.0", "resid_mid.1", "resid_post.1"),
            ["resid_mid.0", "resid_mid.0 to resid_mid.1", "mlp.1"],
        ),
        (("resid_pre.0", "resid_post.1"), ["embed", "resid_pre.0 to resid_post.1"]),
    ]:
        with subtests.test(names=names):
            rows = [{name: one[name] for name in names} for one in stored]
            body = {"kind": "lens", "sessions": {"jobs": [recorded(world, folder, rows)]}, "token": 3}
            found = world.result(world.run(**body))["attribution"]
            assert [one["component"] for one in found] == [*due, "bias"]


@pytest.mark.usefixtures("one_reader")
def test_a_killed_lens_resumes_with_the_listed_rows(world: World, folder: Path, stored: Any) -> None:
    body = {"kind": "lens", "sessions": {"jobs": [recorded(world, folder, stored)]}, "token": 3}
    undisturbed = world.run(**body)
    analysis, store = insert_analysis(world.database, body), WatchedStore(world.store)

    def kill() -> None:
        raise Killed

    # a session takes one read for its header, one for its token ids and one for each of five hooks
    store.at, store.act = 2 * 7 + 4, kill
    with pytest.raises(Killed):
        drain_of(world.settings, world.database, store, "wrk_1", save_seconds=0).look()  # type: ignore[arg-type]
    before, store.at = len(store.read_keys), -1
    leasing.lose(world.database)
    drain_of(world.settings, world.database, store, "wrk_2", save_seconds=0).look()  # type: ignore[arg-type]
    assert len(store.read_keys) - before == 7, "only the last session is read again"
    first, second = (world.files(one) for one in (undisturbed, analysis))
    for name in ("result.json", "lens.csv", "contributions.csv"):
        assert first[name] == second[name]


def test_other_models_and_hooks_are_refused_with_the_reason(
    world: World, folder: Path, stored: Any, subtests: pytest.Subtests
) -> None:
    good = recorded(world, folder, stored)
    narrow = [{"resid_post.1": rows["resid_post.1"][:, :4]} for rows in stored]
    early = [{name: rows[name] for name in ("resid_pre.0", "resid_post.0")} for rows in stored]
    outputs = {"resid_pre.0": "embed", "resid_mid.0": "attn_out.0", "resid_mid.1": "mlp_out.0"}
    raw = [{outputs.get(name, name): rows[name] for name in (*outputs, "resid_post.1")} for rows in stored]
    for job_id, fields, says in [
        (recorded(world, folder, stored, model="other"), {}, "does not serve model 'other'; it serves demo"),
        (recorded(world, folder, stored, weights_sha256="1" * 64), {}, "recorded with 111111111111"),
        (store_sessions(world.database, world.store, stored), {}, "recorded with an unknown model"),
        (recorded(world, folder, narrow), {}, "resid_post.1 is 4 wide; the unembedding reads 8"),
        (recorded(world, folder, early), {"token": 1}, "resid_post.1 is not stored"),
        (recorded(world, folder, raw), {"token": 1}, "attn_out and mlp_out cannot replace them"),
        (good, {"token": VOCABULARY}, "token 30 is not in the vocabulary"),
        (good, {"token": " Paris"}, "the model has no tokenizer.json; give the id of the token ' Paris'"),
        (recorded(world, folder, raw), {"hooks": ["embed"]}, "needs resid_pre, resid_mid or resid_post"),
    ]:
        with subtests.test(says=says):
            failed = world.job(world.run(kind="lens", sessions={"jobs": [job_id]}, **fields))
            assert failed.status == JobStatus.FAILED
            assert says in failed.error["message"]
    (folder / "model.safetensors").unlink()
    failed = world.job(world.run(kind="lens", sessions={"jobs": [good]}))
    assert "has no safetensors files" in failed.error["message"]


def test_tokens_are_named_by_their_texts(world: World, folder: Path, stored: Any) -> None:
    vocabulary = {f"Ġ{name}": number for number, name in enumerate(("Paris", "Rome", "Oslo"))} | {"[UNK]": 3}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    source = {"kind": "lens", "sessions": {"jobs": [recorded(world, folder, stored)]}}
    by_text, by_id = (
        world.result(world.run(**source, token=token, against=against))["attribution"]
        for token, against in ((" Rome", " Oslo"), (1, 2))
    )
    assert by_text == by_id
    failed = world.job(world.run(**source, token=" Rome Oslo"))
    assert "' Rome Oslo' is 2 tokens (1, 2) of this model" in failed.error["message"]
