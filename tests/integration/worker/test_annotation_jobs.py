"""The calculator completes GSM8K's annotations: one text, continued from its own tokens."""

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from actograph.contract.resources import JobStatus, Sample, SampleStatus
from actograph.contract.tool_calls import ToolCall
from evals.tools import CALCULATOR
from storage.results.export.sample import turns
from storage.sessions.writer import SessionReader
from tests.support.additions import TASK, additions
from tests.support.engine_double import Scripted
from worker.engine.messages import TextEnd
from worker.runners import annotation_turns

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

ANNOTATED = {"tools": "calculator", "tool_format": "annotations"}
SUMS = ((14, 23), (57, 68))
HOOKS = ["resid_post.0", "mlp_in.1", "logits"]


def run(bench: "Bench", *pairs: tuple[int, int], **changes: Any) -> list[Sample]:
    spec = {"task": TASK, "sampling": {"max_tokens": 64}} | changes
    job_id = bench.submit(additions(*pairs), **spec)
    bench.drain().look()
    assert bench.status(job_id) is JobStatus.COMPLETED
    done = bench.samples(job_id)
    assert all(sample.status is SampleStatus.COMPLETED for sample in done), [s.error for s in done]
    return done


def scripted(bench: "Bench", *turns: str, **changes: Any) -> tuple[list[Sample], Scripted]:
    engine = Scripted(bench.engine, turns.__getitem__)
    bench.engine = engine  # type: ignore[assignment]
    scorers = ["numeric", "strict-match"]
    task = TASK | {"scorers": scorers}
    return run(bench, *SUMS, **{"task": task, **ANNOTATED} | changes), engine


def test_results_are_put_in_and_the_text_goes_on(bench: "Bench") -> None:
    done, engine = scripted(
        bench, "14+23 = <<14+23=", "37 apples, twice 37 is <<2*37=", "74\n#### 37<|im_end|>"
    )
    whole = "14+23 = <<14+23=37>>37 apples, twice 37 is <<2*37=74>>74\n#### 37"
    for sample in done:
        assert sample.completion == whole
        assert sample.tool_use is not None
        use = sample.tool_use
        assert (use.turns, use.calls, use.errors, use.malformed, use.ended) == (3, 2, 0, 0, "answer")
        assert [m.role for m in sample.messages] == ["assistant", "tool", "assistant", "tool", "assistant"]
        assert "".join(m.content for m in sample.messages) == whole
        assert [turn.get("tool_calls") for turn in turns(sample, None)][1:] == [
            [{"name": "calculator", "arguments": {"expression": "14+23"}}], None,
            [{"name": "calculator", "arguments": {"expression": "2*37"}}], None, None,
        ]  # fmt: skip
    assert [s.scores["exact_match,strict-match"].value for s in done] == [1.0, 0.0]
    first, second, third = next(iter(engine.asked.values()))
    tokenizer = bench.tokenizer
    plain = tokenizer.encode("14+23 = <<14+23=37>>", add_special_tokens=False)
    assert list(second.prompt_ids) == [*first.prompt_ids, *plain]  # as the whole text is tokenised
    assert third.prompt_ids[: len(second.prompt_ids)] == second.prompt_ids
    used = len(third.prompt_ids) - len(first.prompt_ids)
    assert (first.max_tokens, third.max_tokens) == (None, 64 - used)


def test_what_cannot_be_worked_out_is_left_to_the_model_and_counted(bench: "Bench") -> None:
    done, engine = scripted(bench, "<<x*2=", "12>>12 and <<1/0=", "7>>7\n#### 37<|im_end|>")
    for sample in done:
        assert sample.completion == "<<x*2=12>>12 and <<1/0=7>>7\n#### 37"
        assert sample.tool_use is not None
        assert (sample.tool_use.calls, sample.tool_use.errors, sample.tool_use.malformed) == (2, 2, 2)
        assert [m.content for m in sample.messages if m.error] == [
            "Error: 'x' is no arithmetic; only numbers, + - * / and brackets are",
            "Error: division by zero",
        ]
    assert len(next(iter(engine.asked.values()))) == 3


@pytest.mark.parametrize(
    ("turns", "changes", "ended"),
    [
        (["<<1+1="] * 3, {"max_turns": 3}, "max_turns"),
        (["<<1+1="] * 9, {"sampling": {"max_tokens": 20}}, "length"),
        (["a <<1+1=<|im_end|>"], {}, "answer"),
        (["1 << 2 = 4<|im_end|>"], {}, "answer"),
    ],
)  # fmt: skip
def test_how_an_answer_may_end(bench: "Bench", turns: list[str], changes: Any, ended: str) -> None:
    done, _ = scripted(bench, *turns, **changes)
    assert {s.tool_use.ended for s in done if s.tool_use} == {ended}


@pytest.fixture
def own_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this model writes of itself, `14+23=37`, stands for annotations."""
    due = re.compile(r"(?<![\d+])(\d+(?:\+\d+)+)=\Z")

    def call(text: str) -> ToolCall | None:
        found = due.search(text)
        return None if found is None else ToolCall("calculator", {"expression": found[1]})

    monkeypatch.setattr(annotation_turns, "_DUE", TextEnd(due.pattern, last="=", window=64))
    monkeypatch.setattr(annotation_turns, "annotation_call", call)
    monkeypatch.setattr(annotation_turns, "_CLOSE", "")


def read(bench: "Bench", sample: Sample) -> tuple[SessionReader, list[int], dict[str, torch.Tensor]]:
    assert sample.session_id is not None
    reader = SessionReader(bench.store, sample.session_id)
    reader.verify()
    rows = {}
    for hook in HOOKS:
        found = reader.rows(hook, 0, reader.manifest.tensors[hook].shape[0])
        rows[hook] = torch.frombuffer(bytearray(found.data), dtype=torch.float32).view(found.shape)
    return reader, list(reader.token_ids()), rows


@pytest.mark.parametrize("failing", [False, True], ids=["put in", "left to the model"])
@pytest.mark.usefixtures("own_sums")
def test_right_results_change_neither_tokens_nor_rows(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    """A model that calculates well is interrupted, and goes on as if it had not been."""
    if failing:
        monkeypatch.setattr("worker.runners.annotation_turns.CALCULATOR", broken())
    conditions = [{"name": "plain", "tools": "none"}, {"name": "calculator"}]
    done = run(bench, SUMS[0], **ANNOTATED, conditions=conditions, capture={"hooks": HOOKS})
    for plain in (s for s in done if s.condition == "plain"):
        tools = next(s for s in done if s.condition == "calculator" and s.sample_index == plain.sample_index)
        assert tools.completion == plain.completion
        assert tools.tool_use is not None
        assert tools.tool_use.calls >= 2
        assert tools.tool_use.errors == (tools.tool_use.calls if failing else 0)
        (_, ids, rows), (reader, same_ids, same_rows) = read(bench, plain), read(bench, tools)
        assert same_ids == ids
        for hook in HOOKS[:2]:
            torch.testing.assert_close(same_rows[hook], rows[hook], atol=1e-4, rtol=1e-4)
        names = {segment.name for segment in reader.manifest.segments}
        assert names == ({"prompt", "answer"} if failing else {"prompt", "answer", "tool_result"})
        # logits are there for every token from which the model chose, the results' apart
        tokens = list(reader.tokens_of_rows("logits"))
        logits = dict(zip(tokens, same_rows["logits"], strict=True))
        chosen = [n for t in reader.manifest.turns for n in range(t.start + t.prompt_tokens, t.stop)]
        assert [int(logits[n - 1].argmax()) for n in chosen] == [ids[n] for n in chosen]
        assert tools.generated_tokens == len(chosen)


def broken() -> Any:
    def fails(arguments: Any) -> str:
        raise RuntimeError("no result")

    return replace(CALCULATOR, run=fails)


@pytest.mark.usefixtures("own_sums")
def test_another_result_is_what_the_model_goes_on_with(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = replace(CALCULATOR, run=lambda arguments: "99")
    monkeypatch.setattr("worker.runners.annotation_turns.CALCULATOR", wrong)
    for sample in run(bench, SUMS[0], **ANNOTATED, capture={"hooks": HOOKS[:1], "reduce": "mean"}):
        assert sample.completion is not None
        assert "=99" in sample.completion
        assert sample.scores["exact_match,numeric"].value == 0.0
