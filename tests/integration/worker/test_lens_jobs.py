"""The lens as a job, beside the logits that the model gave in the same pass."""

import csv
import io
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.contract.specs import LensSpec
from storage.queue import workers
from tests.support.analysis_bench import AnalysisBench, analysis_bench
from worker.analysis import lens_figures
from worker.analysis.context import Context
from worker.analysis.results import figures, new_figure

pytestmark = pytest.mark.integration

MODEL = "stories"
TEXTS = ["Once upon a time", "Tom and Mia went to the park.", "The end"]
POINTS = ["embed", "attn_out", "mlp_out", "resid_post", "logits"]
LAYERS = 5
LAST = f"resid_post.{LAYERS - 1}"
TOKEN, AGAINST = 9, 40
Lines = list[dict[str, str]]


@pytest.fixture(scope="module")
def bench(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnalysisBench]:
    checkpoint = tmp_path_factory.mktemp("model") / "stories"
    shutil.copytree(shared / "models" / "stories260k", checkpoint)
    with analysis_bench(tmp_path_factory.mktemp("home"), MODEL, checkpoint) as made:
        yield made


@pytest.fixture(scope="module")
def source(bench: AnalysisBench) -> str:
    return bench.extract(TEXTS, POINTS)


def spec(source: str, **fields: Any) -> LensSpec:
    return LensSpec.model_validate({"kind": "lens", "jobs": [source]} | fields)


def lines(data: bytes) -> Lines:
    return list(csv.DictReader(io.StringIO(data.decode())))


def log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return np.asarray(wide - np.logaddexp.reduce(wide, axis=1, keepdims=True))


def following(bench: AnalysisBench, source: str) -> np.ndarray:
    return np.concatenate([[*reader.token_ids()[1:], -1] for reader in bench.readers(source)])


def test_the_last_layer_reads_as_the_logits_of_the_same_pass(bench: AnalysisBench, source: str) -> None:
    job_id = bench.submit(spec(source, top=3, listed=100))
    bench.work()
    found = bench.results(job_id).analysis
    assert found is not None, bench.error(job_id)
    (one,) = found["jobs"]
    logs, after = log_softmax(bench.stored(source, "logits")), following(bench, source)
    assert list(one["hooks"]) == [f"resid_post.{layer}" for layer in range(LAYERS)]
    last, known = one["hooks"][LAST], after >= 0
    assert (last["rows"], last["next_rows"], last["agreement"]) == (len(logs), known.sum(), 1.0)
    expected = logs[known, after[known]].mean()
    assert last["next_log_probability"] == pytest.approx(expected, abs=1e-4)
    assert last["next_is_top"] == pytest.approx((logs.argmax(axis=1) == after)[known].mean())
    assert one["hooks"]["resid_post.0"]["agreement"] < 1
    written = bench.files(job_id)
    assert set(written) == {"lens.csv", "lens.png", "lens.svg", "tokens.png", "tokens.svg"}
    listed = [line for line in lines(written["lens.csv"]) if line["hook"] == LAST]
    assert len(listed) == 3 * len(logs)
    best = np.argsort(-logs, axis=1, kind="stable")[:, :3]
    assert [int(line["token"]) for line in listed] == best.ravel().tolist()
    shown = [float(line["log_probability"]) for line in listed]
    assert shown == pytest.approx(np.take_along_axis(logs, best, axis=1).ravel(), abs=1e-4)
    inputs = [token for reader in bench.readers(source) for token in reader.token_ids()]
    assert [int(line["input"]) for line in listed[::3]] == inputs


@pytest.mark.parametrize("token", [TOKEN, "next"])
def test_contributions_add_up_to_the_difference_of_the_logits(
    bench: AnalysisBench, source: str, token: Any
) -> None:
    job_id = bench.submit(spec(source, hooks=[LAST], token=token, against=AGAINST))
    bench.work()
    found = bench.results(job_id).analysis
    assert found is not None, bench.error(job_id)
    parts = found["jobs"][0]["attribution"]["components"]
    assert list(parts)[:3] == ["embed", "attn_out.0", "mlp_out.0"]
    assert list(parts)[-1] == "rest"
    assert parts["rest"]["mean_magnitude"] < 1e-4 * parts["embed"]["mean_magnitude"]
    logits, after = bench.stored(source, "logits").astype(np.float64), following(bench, source)
    known = np.flatnonzero(after >= 0) if token == "next" else np.arange(len(after))
    chosen = after[known] if token == "next" else np.full(len(known), TOKEN)
    difference = logits[known, chosen] - logits[known, AGAINST]
    assert sum(part["mean"] for part in parts.values()) == pytest.approx(difference.mean(), abs=1e-4)
    listed = lines(bench.files(job_id)["attribution.csv"])
    assert len(listed) == len(known) * len(parts)
    sums = np.array([float(line["contribution"]) for line in listed]).reshape(len(known), -1).sum(axis=1)
    assert sums == pytest.approx(difference, abs=1e-3)


def test_blocks_and_a_stop_change_nothing(
    bench: AnalysisBench, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = spec(source, token="next", listed=2)
    whole = bench.submit(made)
    bench.work()
    resumed = bench.submit(made)
    finish, read = Context.finish, []

    class Killed(BaseException):
        pass

    def die(self: Context, session_id: str, state: Any) -> None:
        finish(self, session_id, state)
        read.append(session_id)
        if len(read) == 2:
            raise Killed

    monkeypatch.setattr(Context, "finish", die)
    with pytest.raises(Killed):
        bench.work(analysis_checkpoint_seconds=0, analysis_memory_bytes=60_000)
    with bench.database.write() as session:  # the lease of the dead worker expires
        workers.bury(session, "here", lambda pid: False)
    bench.work()
    assert len(read) == len(set(read)) == len(TEXTS)
    first, second = (bench.results(job_id).analysis for job_id in (whole, resumed))
    assert first is not None
    assert second is not None
    for name, numbers in first["jobs"][0]["hooks"].items():
        assert second["jobs"][0]["hooks"][name] == pytest.approx(numbers)
    for name in ("lens.csv", "attribution.csv"):
        listed = [lines(bench.files(job_id)[name]) for job_id in (whole, resumed)]
        assert len({line["session_id"] for line in listed[0]}) == 2
        for one, other in zip(*listed, strict=True):
            for column in ("logit", "log_probability", "contribution"):
                if column in one:
                    assert float(one.pop(column)) == pytest.approx(float(other.pop(column)), abs=1e-4)
            assert one == other


def test_rows_in_bfloat16_read_almost_as_those_in_float32(bench: AnalysisBench, source: str) -> None:
    rounded = bench.extract(TEXTS, POINTS, dtype="bfloat16")
    job_id = bench.submit(spec(rounded, hooks=[LAST], token=TOKEN, top=1))
    bench.work()
    found = bench.results(job_id).analysis
    assert found is not None, bench.error(job_id)
    exact = bench.analyse(spec(source, hooks=[LAST], token=TOKEN, top=1)).analysis
    assert exact is not None
    one, other = (each["jobs"][0] for each in (found, exact))
    numbers = one["hooks"][LAST]["next_log_probability"], other["hooks"][LAST]["next_log_probability"]
    assert numbers[0] != numbers[1]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.1)
    parts, exact_parts = (each["attribution"]["components"] for each in (one, other))
    assert parts["rest"]["mean_magnitude"] > exact_parts["rest"]["mean_magnitude"]
    assert parts["embed"]["mean"] == pytest.approx(exact_parts["embed"]["mean"], rel=0.05)


def test_jobs_and_tokens_that_do_not_fit_are_refused(bench: AnalysisBench, source: str) -> None:
    without = bench.extract(TEXTS[:1], ["resid_post"])
    for given, message in (
        (spec(without, token=TOKEN), "no component to attribute to"),
        (spec(source, token=10**6), "token 1000000 is not in the vocabulary"),
        (spec(source, points=["logits"]), "rows must be"),
    ):
        job_id = bench.submit(given)
        bench.work()
        assert message in bench.error(job_id)
    job_id = bench.submit(spec(source))
    bench.work(analysis_memory_bytes=2000)
    assert "list fewer sessions" in bench.error(job_id)
    with pytest.raises(ValueError, match="against needs a token"):
        spec(source, against=1)


def test_other_weights_than_those_of_the_job_are_refused(bench: AnalysisBench, source: str) -> None:
    weights = Path(bench.settings.model.partition("=")[2]) / "model.safetensors"
    former = weights.read_bytes()
    changed = bytearray(former)
    changed[-1] ^= 1
    try:
        weights.write_bytes(changed)
        job_id = bench.submit(spec(source))
        bench.work()
        assert "digest" in bench.error(job_id)
        assert source in bench.error(job_id)
        weights.unlink()
        job_id = bench.submit(spec(source))
        bench.work()
        assert "no weight files" in bench.error(job_id)
    finally:
        weights.write_bytes(former)


def test_texts_of_tokens_are_drawn_without_markup_and_in_letters_of_the_font() -> None:
    grid = lens_figures.TokenGrid(
        session_id="ses_0",
        hooks=["resid_post.0"],
        positions=np.arange(4),
        texts=[["$x^2$", "\u4e2d\u6587", "\x00", "\u2581a_very_long_token"]],
        probabilities=np.full((1, 4), 0.5),
    )
    data = io.BytesIO()
    lens_figures.tokens(grid).savefig(data, format="png")
    assert data.getvalue().startswith(b"\x89PNG")


def test_names_with_dollar_signs_are_drawn_as_they_are() -> None:
    figure = new_figure(2, 2)
    axes = figure.subplots()
    axes.bar([0], [1], label="$x^$")
    axes.set_xticks([0], ["$x^$"])
    axes.legend()
    assert set(figures("names", figure)) == {"names.png", "names.svg"}


def test_an_analysis_worker_needs_neither_torch_nor_transformers() -> None:
    program = (
        "import sys, worker.analysis.drain; "
        "print([m for m in ('torch', 'transformers', 'nnsight') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.stdout.strip() == "[]", ended.stderr
