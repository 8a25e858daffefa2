"""Analyses of stored sessions: planted outliers, plain scikit-learn, resumption, lost leases."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from actograph.analysis.comparison import compare_rows
from actograph.analysis.outliers import outliers_of_arrays
from actograph.contract.interventions import Intervention, check_stored
from actograph.contract.readouts import ReadoutCapture, bias_of
from actograph.contract.resources import JobStatus
from storage.index.database import Database
from storage.jobs import control, jobs
from storage.sessions import sessions, vectors
from storage.sessions.filter import SessionFilter
from storage.tables.models import SampleRow
from storage.upkeep import reaper
from tests.support import leasing
from tests.support.analysed import Killed, WatchedStore, World, drain_of, insert_analysis, store_sessions
from worker.analysis import outliers

LAYERS, WIDTH, TOKENS = 4, 16, 25


@pytest.fixture
def world(sqlite: Database, tmp_path: Path) -> World:
    return World(sqlite, tmp_path)


@pytest.fixture
def world_on_both(database: Database, tmp_path: Path) -> World:
    return World(database, tmp_path)


@pytest.fixture
def planted() -> list[dict[str, NDArray[np.float32]]]:
    """Features 5 and 9 are outliers; 3 has too few positions, 7 reaches 6.0 nowhere, 11 is massive once."""
    generator = np.random.default_rng(7)
    found = []
    for number in range(4):
        rows = {
            f"resid_post.{layer}": generator.normal(size=(TOKENS, WIDTH)).astype(np.float32)
            for layer in range(LAYERS)
        }
        for layer in (1, 2):
            rows[f"resid_post.{layer}"][::10, 5] = 20
        rows["resid_post.3"][:, 9] = -8
        rows["resid_post.0"][number, 3] = 7
        rows["resid_post.0"][:, 7] = 5.99
        found.append(rows)
    found[2]["resid_post.0"][7, 11] = -5000
    return found


def whole(stored: list[dict[str, NDArray[np.float32]]]) -> Mapping[str, NDArray[np.float32]]:
    return {hook: np.concatenate([rows[hook] for rows in stored]) for hook in stored[0]}


def test_planted_outliers_are_found_exactly(world: World, planted: Any) -> None:
    job_id = store_sessions(world.database, world.store, planted)
    found = world.result(world.run(kind="outliers", sessions={"jobs": [job_id]}))
    assert [one["feature"] for one in found["outlier_features"]] == [9, 5]
    expected = outliers_of_arrays(whole(planted))
    assert found["outlier_features"] == json.loads(json.dumps(expected["outlier_features"]))
    (massive,) = found["massive_activations"]
    with world.database.read() as session:
        third = sessions.ids(session, SessionFilter(job_id=job_id))[2]
    place = {"hook": "resid_post.0", "session_id": third, "position": 7, "feature": 11, "value": -5000.0}
    assert massive | place == massive
    for hook, rows in whole(planted).items():
        numbers = found["hooks"][hook]
        assert numbers["values"] == rows.size
        exact = rows.astype(np.float64)
        centred = exact - exact.mean()
        kurtosis = (centred**4).mean() / exact.var() ** 2
        for name, value in (("mean", exact.mean()), ("variance", exact.var()), ("kurtosis", kurtosis)):
            assert numbers[name] == pytest.approx(value, rel=1e-5), name
        assert numbers["largest"] == np.abs(exact).max()


def test_a_point_names_its_layers_and_positions_select_tokens(world: World, planted: Any) -> None:
    job_id = store_sessions(world.database, world.store, planted)
    query = {"jobs": [job_id], "limit": 3}
    few = world.run(
        kind="outliers", sessions=query, hooks=["resid_post.1", "blocks.3.hook_resid_post"], positions=[0, 10]
    )
    found = world.result(few)
    assert (found["sessions"], found["positions"]) == (3, 6)
    assert list(found["hooks"]) == ["resid_post.1", "resid_post.3"]
    everything = world.run(kind="outliers", sessions=query, hooks=["resid_post"])
    assert len(world.result(everything)["hooks"]) == LAYERS


@pytest.mark.usefixtures("one_reader")
def test_a_killed_analysis_resumes_after_its_last_save(
    world_on_both: World, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_on_both
    job_id = store_sessions(world.database, world.store, planted)
    body = {"kind": "outliers", "sessions": {"jobs": [job_id]}}
    # ten rows of all hooks at once: three blocks for each session
    monkeypatch.setitem(outliers.run.__kwdefaults__, "block_bytes", 10 * LAYERS * WIDTH * 4)
    undisturbed = world.result(world.run(**body))
    analysis = insert_analysis(world.database, body)
    store = WatchedStore(world.store)

    def kill() -> None:
        raise Killed

    # a session takes one read of its header, and one per block and hook
    store.at, store.act = 2 * (1 + 3 * LAYERS) + 5, kill
    with pytest.raises(Killed):
        drain_of(world.settings, world.database, store, "wrk_1", save_seconds=0).look()  # type: ignore[arg-type]
    before, store.at = list(store.read_keys), -1
    leasing.lose(world.database)
    drain_of(world.settings, world.database, store, "wrk_2", save_seconds=0).look()  # type: ignore[arg-type]
    assert world.result(analysis) == undisturbed
    after = store.read_keys[len(before) :]
    assert not set(before[:-5]) & set(after), "sessions that were saved are not read again"
    reaper.reap(world.database, world.store)
    assert not list(world.store.list_prefixes("files")), "the state is gone"


@pytest.mark.usefixtures("one_reader")
def test_sessions_in_s3_are_read_by_range_and_a_killed_analysis_resumes_there(
    sqlite: Database, tmp_path: Path, planted: Any, s3_bucket: str
) -> None:
    world = World(sqlite, tmp_path, f"s3://{s3_bucket}/lab")
    job_id = store_sessions(world.database, world.store, planted)
    body = {"kind": "outliers", "sessions": {"jobs": [job_id]}}
    analysis, store = insert_analysis(world.database, body), WatchedStore(world.store)

    def kill() -> None:
        raise Killed

    # a session takes one read of its header and one for each layer
    store.at, store.act = 2 * (1 + LAYERS) + 2, kill
    with pytest.raises(Killed):
        drain_of(world.settings, world.database, store, "wrk_1", save_seconds=0).look()  # type: ignore[arg-type]
    before, store.at = len(store.read_keys), -1
    leasing.lose(world.database)
    drain_of(world.settings, world.database, store, "wrk_2").look()  # type: ignore[arg-type]
    assert len(store.read_keys) - before == 2 * (1 + LAYERS), "two sessions were saved"
    expected = outliers_of_arrays(whole(planted))["outlier_features"]
    assert world.result(analysis)["outlier_features"] == json.loads(json.dumps(expected))


@pytest.mark.usefixtures("one_reader")
def test_a_cancelled_analysis_leaves_nothing_and_can_be_retried(world_on_both: World, planted: Any) -> None:
    world = world_on_both
    job_id = store_sessions(world.database, world.store, planted)
    analysis = insert_analysis(world.database, {"kind": "outliers", "sessions": {"jobs": [job_id]}})
    store = WatchedStore(world.store)

    def cancel() -> None:
        with world.database.write() as session:
            jobs.cancel(session, analysis)

    store.at, store.act = 3, cancel
    drain = drain_of(world.settings, world.database, store, save_seconds=0)  # type: ignore[arg-type]
    assert drain.look()
    assert world.job(analysis).status == JobStatus.CANCELLED
    with world.database.read() as session:
        assert not sessions.ids(session, SessionFilter(job_id=analysis))
    with world.database.write() as session:
        control.retry(session, analysis)
    assert drain.look()
    assert world.job(analysis).status == JobStatus.COMPLETED


@pytest.mark.usefixtures("one_reader")
def test_the_use_of_experts_is_that_of_the_rows_also_after_a_kill(world: World, planted: Any) -> None:
    generator = np.random.default_rng(2)
    for rows in planted:
        rows["mlp_in.1"] = rows["resid_post.1"]
        rows["router_logits.1"] = generator.normal(size=(TOKENS, 6)).astype(np.float32)
        rows["expert_indices.1"] = np.argsort(-rows["router_logits.1"], axis=1)[:, :2].astype(np.int32)
    job_id = store_sessions(world.database, world.store, planted)
    body = {"kind": "outliers", "sessions": {"jobs": [job_id]}}
    analysis, store = insert_analysis(world.database, body), WatchedStore(world.store)

    def kill() -> None:
        raise Killed

    # a session takes one read for its header and one for each of seven hooks
    store.at, store.act = 2 * 8 + 3, kill
    with pytest.raises(Killed):
        drain_of(world.settings, world.database, store, "wrk_1", save_seconds=0).look()  # type: ignore[arg-type]
    leasing.lose(world.database)
    drain_of(world.settings, world.database, world.store, "wrk_2").look()
    found = world.result(analysis)
    assert not any("router" in hook or "expert" in hook for hook in found["hooks"])
    expected = outliers_of_arrays(whole(planted))["experts"]["1"]
    use = found["experts"]["1"]
    assert use.pop("router_entropy") == pytest.approx(expected.pop("router_entropy"))
    assert use == json.loads(json.dumps(expected))
    assert expected["outliers"][0]["features"], "the planted values are among the inputs"
    lines = world.files(analysis)["experts.csv"].decode().splitlines()
    assert len(lines) == 1 + 6
    failed = world.job(world.run(**body, hooks=["router_logits"]))
    assert "choose other hooks beside those of routers" in failed.error["message"]


def test_a_damaged_session_is_left_out_with_the_reason(world: World, planted: Any) -> None:
    job_id = store_sessions(world.database, world.store, planted)
    with world.database.read() as session:
        first = sessions.ids(session, SessionFilter(job_id=job_id))[0]
    path = world.store.local_path(f"sessions/{first}/manifest.json")
    assert path is not None
    path.write_text("{}")
    found = world.result(world.run(kind="outliers", sessions={"jobs": [job_id]}))
    assert (found["sessions"], found["skipped_sessions"]) == (3, 1)
    assert found["skipped"][0]["session_id"] == first


@pytest.fixture
def problems() -> tuple[list[dict[str, NDArray[np.float32]]], list[bool]]:
    """60 problems whose second layer knows the label, more or less."""
    generator = np.random.default_rng(3)
    correct = [bool(one) for one in generator.integers(0, 2, 60)]
    stored = []
    for label in correct:
        rows = {f"resid_post.{layer}": generator.normal(size=(5, 8)).astype(np.float32) for layer in (0, 1)}
        rows["resid_post.1"][:, 2] += 1.5 * label
        stored.append(rows)
    return stored, correct


def test_a_probe_equals_plain_scikit_learn(world: World, problems: Any) -> None:
    stored, correct = problems
    job_id = store_sessions(world.database, world.store, stored, correct=correct)
    analysis = world.run(
        kind="probe", sessions={"jobs": [job_id]}, positions="all", reduce="mean", c=0.5, resamples=20,
        shuffles=9, save_as="right",
    )  # fmt: skip
    found = world.result(analysis)["hooks"]
    labels = np.array(correct, int)
    features = np.stack([rows["resid_post.1"].astype(np.float64).mean(axis=0) for rows in stored])
    features = features.astype(np.float32)
    areas, hits = [], []
    split = StratifiedGroupKFold(5, shuffle=True, random_state=0)
    for train, test in split.split(features, labels, np.arange(len(labels))):
        plain = make_pipeline(StandardScaler(), LogisticRegression(C=0.5, max_iter=2000))
        chances = plain.fit(features[train], labels[train]).predict_proba(features[test])[:, 1]
        areas.append(roc_auc_score(labels[test], chances))
        hits += list((chances >= 0.5) == labels[test])
    assert found["resid_post.1"]["auroc"] == pytest.approx(np.mean(areas), rel=1e-9)
    assert found["resid_post.1"]["accuracy"] == pytest.approx(np.mean(hits), rel=1e-9)
    assert found["resid_post.1"]["auroc"] > found["resid_post.0"]["auroc"] + 0.1
    aurocs = [found[hook]["shuffled_aurocs"] for hook in ("resid_post.0", "resid_post.1")]
    best = np.max(aurocs, axis=0)
    for hook, numbers in found.items():
        assert numbers["p_corrected"] == (1 + (best >= numbers["auroc"]).sum()) / 10
        assert (
            numbers["p_value"] == (1 + (np.array(numbers["shuffled_aurocs"]) >= numbers["auroc"]).sum()) / 10
        )
        assert numbers["p_value"] <= numbers["p_corrected"], hook
    # the answers are all "c"
    assert found["resid_post.1"]["baselines"]["bag_of_words"]["auroc"] == 0.5
    whole_fit = make_pipeline(StandardScaler(), LogisticRegression(C=0.5, max_iter=2000)).fit(
        features, labels
    )
    weights = whole_fit[-1].coef_[0] / whole_fit[0].scale_
    with world.database.read() as session:
        ids = {row.hook: row.id for row in vectors.find(session, name="right", limit=10)[0]}
    assert set(ids) == {"resid_post.0", "resid_post.1"}
    with world.database.read() as session:
        row = vectors.get(session, ids["resid_post.1"])
        steer = Intervention(hook="resid_post.1", op="add", vector_id=row.id)
        assert np.allclose(vectors.numbers(row), weights, rtol=1e-5)
        check_stored(steer, vectors.resource(row), "demo", "interventions.0.vector_id")
        bias = bias_of(ReadoutCapture(vector=row.id), vectors.resource(row), "capture.readouts.0")
        logits = features @ np.array(vectors.numbers(row)) + bias
    assert np.allclose(logits, whole_fit.decision_function(features), atol=1e-5), "a readout is the logit"
    lines = world.files(analysis)["probes.csv"].decode().splitlines()
    assert lines[0].startswith("hook,auroc,accuracy")
    assert [line.partition(",")[0] for line in lines[1:]] == ["resid_post.0", "resid_post.1"]


def test_words_and_lengths_of_prompts_are_baselines(world: World, problems: Any) -> None:
    """Baselines of prompts stand alone for prefilled texts, and beside those of the answers otherwise."""
    stored, correct = problems
    prompts = [f"number {number} {'yes' if label else 'no'}" for number, label in enumerate(correct)]
    lengths = [
        {name: array[: 3 + 2 * label] for name, array in rows.items()}
        for rows, label in zip(stored, correct, strict=True)
    ]
    options: dict[str, Any] = {"correct": correct, "prompts": prompts}
    fields = {
        "hooks": ["resid_post.1"],
        "positions": "last",
        "c": 1.0,
        "folds": 2,
        "resamples": 9,
        "shuffles": 1,
    }
    for prefill, names in ((True, ("length", "bag_of_words")), (False, ("prompt_length", "prompt_words"))):
        job_id = store_sessions(world.database, world.store, lengths, prefill=prefill, **options)
        analysis = world.run(kind="probe", sessions={"jobs": [job_id]}, **fields)
        found = world.result(analysis)["hooks"]["resid_post.1"]["baselines"]
        assert {name: found[name]["auroc"] for name in names} == dict.fromkeys(names, 1.0)
        assert set(found) == {"majority", "shuffled_labels", "length", "bag_of_words", *names}


def test_rows_of_one_value_of_a_column_stay_together(world: World) -> None:
    """Two texts of each problem with opposite labels, and rows that tell the problem alone."""
    generator = np.random.default_rng(5)
    problems = np.repeat(np.arange(40), 2)
    correct = [bool(place % 2) for place in range(80)]
    rows = generator.normal(size=(40, 100))[problems] + generator.normal(size=(80, 100)) * 0.3
    stored = [{f"resid_post.{n}": row[None].astype(np.float32) for n in range(3)} for row in rows]
    prompts = [f"problem {problem}" for problem in problems]
    job_id = store_sessions(
        world.database, world.store, stored, correct=correct, prompts=prompts, prefill=True
    )
    body = {"kind": "probe", "sessions": {"jobs": [job_id]}, "positions": "last", "shuffles": 1}
    body |= {"resamples": 100}
    split = world.result(world.run(**body, c=1.0))
    assert split["hooks"]["resid_post.0"]["auroc_interval"][1] < 0.5
    # one remark for all hooks that it is true of
    (below,) = [one for one in split["warnings"] if "the AUROC of the probe lies below chance" in one]
    assert below.startswith("resid_post.0 to resid_post.2: the AUROC")
    together = world.result(world.run(**body, c=1.0, groups="column:prompt"))
    assert together["hooks"]["resid_post.0"]["groups"] == 40
    assert together["warnings"] == []
    with world.database.write() as session:
        for row in session.scalars(sa.select(SampleRow).where(SampleRow.job_id == job_id)):
            row.input = {**row.input, "columns": {"topic": row.sample_index // 2}}
    by_topic = world.result(world.run(**body, c=1.0, groups="column:topic"))
    assert by_topic["hooks"]["resid_post.0"]["groups"] == 40
    failed = world.job(world.run(**body, groups="column:subject"))
    assert "has no column 'subject'. Known: prompt, topic" in failed.error["message"]


def test_a_probe_without_two_labels_fails_with_the_reason(world: World, problems: Any) -> None:
    job_id = store_sessions(world.database, world.store, problems[0])
    failed = world.job(world.run(kind="probe", sessions={"jobs": [job_id]}))
    assert failed.status == JobStatus.FAILED
    assert "no session has a value of the label 'correct'" in failed.error["message"]


@pytest.mark.usefixtures("one_reader")
def test_conditions_are_compared_problem_by_problem_and_finished_hooks_are_kept(
    world: World, problems: Any
) -> None:
    first, second = problems[0][:30], problems[0][30:]
    both = [rows for pair in zip(first, second, strict=True) for rows in pair]
    job_id = store_sessions(world.database, world.store, both, conditions=["a", "b"])
    sides = {name: {"jobs": [job_id], "condition": name} for name in ("a", "b")}
    body = {
        "kind": "compare", "sessions": sides["a"], "other": sides["b"], "positions": "last",
        "permutations": 99,
    }  # fmt: skip
    analysis = insert_analysis(world.database, body)
    store = WatchedStore(world.store)
    # a hook takes two reads from each of the 60 sessions: the header and a row
    store.at = 60 * 2 + 5

    def kill() -> None:
        raise Killed

    store.act = kill
    with pytest.raises(Killed):
        drain_of(world.settings, world.database, store, "wrk_1", save_seconds=0).look()  # type: ignore[arg-type]
    leasing.lose(world.database)
    store.at = -1
    del store.read_keys[:]
    drain_of(world.settings, world.database, store, "wrk_2", save_seconds=0).look()  # type: ignore[arg-type]
    assert len(store.read_keys) == 60 * 2, "only the second hook is read"
    found = world.result(analysis)["hooks"]
    for hook in ("resid_post.0", "resid_post.1"):
        rows = [np.stack([one[hook][-1] for one in side]) for side in (first, second)]
        expected = compare_rows(*rows, range(30), range(30), permutations=99).as_json()
        assert found[hook] == json.loads(json.dumps(expected))
