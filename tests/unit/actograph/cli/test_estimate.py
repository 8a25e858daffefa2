"""`actograph estimate` takes what `jobs submit` takes, and leaves nothing behind."""

import json
import subprocess
from typing import Any

import pytest
import typer

from actograph.cli.main import app
from actograph.contract.operations import CardEstimate, LengthFit
from tests.support.command_line import Run


def test_it_has_every_flag_of_submit_but_watch() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    submit, estimate = commands["jobs"].commands["submit"], commands["estimate"]
    flags = {one.name for one in submit.params} - {"watch"}
    own = {"prompt_tokens", "card", "tensor_parallel", "model_dtype", "slots"}
    assert {one.name for one in estimate.params} == flags | own


def test_a_card_is_estimated_without_the_service(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTOGRAPH_URL", "http://127.0.0.1:9")
    orders: list[dict[str, Any]] = []
    answers = [
        CardEstimate(
            model="m", architecture="Q", dtype="bfloat16", num_parameters=4, card_bytes=24 << 30,
            weights_bytes=3 << 29, pass_bytes=1 << 30, spare_bytes=1 << 30, run_bytes=41 << 29,
            kv_bytes_per_token=2048, slots=7, longest_tokens=900, fits=True,
            lengths=[LengthFit(tokens=900, slots=7)], assumptions=["nothing else uses the card"],
        ).model_dump_json(),
        '{"error": "m: its weights are quantised"}',
    ]  # fmt: skip

    def answer(command: list[str], *, input: str, **_: Any) -> subprocess.CompletedProcess[str]:
        orders.append(json.loads(input))
        text = answers.pop(0)
        return subprocess.CompletedProcess(command, int("error" in text), stdout=text, stderr="")

    monkeypatch.setattr("actograph.stack.card.subprocess.run", answer)
    flags = ["--model", "m", "--card", "24GiB", "--capture", "resid_post@1", "--max-tokens", 11]
    code, out, err = run("estimate", *flags, "--prompt-tokens", 100, "--model-dtype", "bfloat16")
    assert (code, err) == (0, "")
    assert orders[0] == {
        "model": "m", "card_bytes": 24 << 30, "tensor_parallel": 1, "slots": 0, "dtype": "bfloat16",
        "revision": None, "capture": {"points": ["resid_post"], "layers": [1]}, "tokens": 110,
    }  # fmt: skip
    shown = {name: text.strip() for name, _, text in (line.partition(":") for line in out.splitlines())}
    assert (shown["weights"], shown["run"], shown["slots"]) == ("1.5 GiB", "20.5 GiB", "7")
    assert out.splitlines()[-1] == "- nothing else uses the card"
    code, _, err = run("estimate", *flags, "--tensor-parallel", 2)
    assert code == 1 and "its weights are quantised" in err


def test_flags_of_a_card_are_refused_with_the_reason(run: Run, subtests: pytest.Subtests) -> None:
    for flags, reason in [
        (["--model", "m", "--model-dtype", "float32"], "need --card"),
        (["--model", "m", "--card", "24"], "24 is 24 bytes"),
        (["--model", "m", "--card", "large"], "'large' is not a size"),
        (["--card", "24GiB"], "--card needs --model"),
        (["--model", "m", "--card", "24GiB", "--model-dtype", "int3"], "'int3' is none of auto"),
    ]:
        with subtests.test(reason):
            code, _, err = run("estimate", *flags)
            assert code == 1 and reason in err
