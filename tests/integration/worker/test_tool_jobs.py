"""Evaluations with tools through the drain: answers, records, sessions of several turns, bad ends."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from actograph.contract.resources import JobStatus, Sample, SampleStatus
from evals import tools
from storage.jobs import jobs
from storage.results import summary
from storage.sessions.writer import SessionReader
from tests.support.additions import TASK, additions
from tests.support.engine_double import Scripted, Watched
from worker.engine.messages import Request
from worker.engine.structure.structure import discover

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

KEY = "exact_match,numeric"
CAPTURE = {"hooks": ["resid_post.0", "mlp_in.1", "logits"]}


def problems(count: int) -> list[dict[str, str]]:
    chance = random.Random(3)
    return additions(*((chance.randint(10, 99), chance.randint(10, 99)) for _ in range(count)))


def submit(bench: "Bench", count: int = 6, **changes: Any) -> str:
    spec = {"task": TASK, "tools": "calculator", "sampling": {"max_tokens": 64}, "capture": CAPTURE} | changes
    return bench.submit(problems(count), **spec)


def run(bench: "Bench", job_id: str) -> list[Sample]:
    bench.drain().look()
    assert bench.status(job_id) is JobStatus.COMPLETED
    done = bench.samples(job_id)
    assert all(sample.status is SampleStatus.COMPLETED for sample in done), [s.error for s in done]
    return done


def test_the_calculator_is_used_and_every_row_is_kept(bench: "Bench") -> None:
    done = run(bench, submit(bench, 8))
    assert sum(sample.scores[KEY].value for sample in done) >= 7
    for sample in done:
        assert sample.tool_use is not None
        assert (sample.tool_use.ended, sample.tool_use.turns, sample.tool_use.calls) == ("answer", 2, 1)
        assert [message.role for message in sample.messages] == ["assistant", "tool", "assistant"]
        assert sample.messages[-1].content == sample.completion
        assert sample.session_id is not None
        reader = SessionReader(bench.store, sample.session_id)
        reader.verify()
        manifest, ids = reader.manifest, reader.token_ids()
        assert [turn.context is None for turn in manifest.turns] == [True, False]
        chosen = sum(turn.stop - turn.start - turn.prompt_tokens for turn in manifest.turns)
        assert sample.generated_tokens == chosen
        assert {s.name for s in manifest.segments} == {"prompt", "tool_call", "tool_result", "answer"}
        tokens = list(reader.tokens_of_rows("resid_post.0"))
        assert len(tokens) == len(ids) - 2
        for turn in manifest.turns:  # its own forward, over what the model had before it
            before = ids[: turn.context or 0]
            whole = [*before, *ids[turn.start : turn.stop]]
            with torch.inference_mode():
                states = bench.engine.model.hf(
                    input_ids=torch.tensor([whole[:-1]]), output_hidden_states=True
                ).hidden_states
            start = tokens.index(turn.start)
            stored = reader.rows("resid_post.0", start, start + turn.stop - turn.start - 1)
            rows = torch.frombuffer(bytearray(stored.data), dtype=torch.float32).view(stored.shape)
            assert torch.allclose(rows, states[1][0, len(before) :], atol=1e-4)
        assert len(reader.tokens_of_rows("logits")) == chosen


def test_each_turn_draws_its_own_noise(bench: "Bench") -> None:
    seeds: dict[str, list[int]] = {}

    def noted(requests: Sequence[Request]) -> None:
        for request in requests:
            seeds.setdefault(request.key, []).append(request.seed)

    bench.engine = Watched(bench.engine, noted)  # type: ignore[assignment]
    run(bench, submit(bench, 2))
    assert [len(set(drawn)) for drawn in seeds.values()] == [2, 2]


def test_conditions_with_and_without_tools_meet_the_same_problems(bench: "Bench") -> None:
    job_id = submit(
        bench, tools="none", conditions=[{"name": "plain"}, {"name": "calculator", "tools": "calculator"}]
    )
    done = run(bench, job_id)
    assert {s.tool_use is None for s in done if s.condition == "plain"} == {True}
    assert all(s.tool_use is not None for s in done if s.condition == "calculator")
    with bench.database.snapshot() as session:
        results = summary.of_job(session, jobs.get(session, job_id))
    assert results.conditions["plain"].tool_use is None
    totals = results.conditions["calculator"].tool_use
    assert totals is not None
    assert (totals.samples, totals.calling, totals.calls, totals.turns) == (6, 6, 6, 12)
    assert totals.ended == {"answer": 6}
    plain = next(s for s in done if s.condition == "plain")
    assert plain.session_id is not None
    assert SessionReader(bench.store, plain.session_id).manifest.turns[0].context is None


def test_a_condition_may_sample_otherwise(bench: "Bench") -> None:
    conditions = [{"name": "greedy"}, {"name": "hot", "sampling": {"temperature": 1.5}}]
    job_id = bench.submit(problems(4), sampling={"max_tokens": 24}, conditions=conditions, capture=CAPTURE)
    apart = {name: bench.submit(problems(4), sampling={"max_tokens": 24, "temperature": heat})
             for name, heat in (("greedy", 0.0), ("hot", 1.5))}  # fmt: skip
    together = run(bench, job_id)
    for name, alone in apart.items():
        assert [s.completion for s in together if s.condition == name] == [
            s.completion for s in run(bench, alone)
        ]
    assert bench.stored_sessions() == {s.session_id for s in together}


def broken(arguments: Mapping[str, Any]) -> str:
    raise RuntimeError("the calculator is on fire")


def test_a_calculator_that_raises_is_told_to_the_model(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evals.tools.CALCULATOR", replace(tools.CALCULATOR, run=broken))
    for sample in run(bench, submit(bench, 2)):
        assert sample.tool_use is not None
        assert sample.tool_use.errors >= 1
        assert sample.messages[1].error
        assert "on fire" in sample.messages[1].content
        assert KEY in sample.scores


Say = Callable[[int], str]


END = "<|im_end|>"
BROKEN = "<tool_call>\n{broken\n</tool_call>"
CALL = '<tool_call>\n{{"name": "{}", "arguments": {{"expression": "1+1"}}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("say", "ended", "counts", "answered"),
    [
        (lambda turn: BROKEN if turn == 0 else "#### 2", "answer", (1, 1, 1), "not valid JSON"),
        (lambda turn: CALL.format("clock") if turn == 0 else "#### 2", "answer", (1, 1, 0), "no tool"),
        (lambda turn: CALL.format("calculator"), "max_turns", (3, 0, 0), "2"),
        (lambda turn: "so " * 500 + CALL.format("calculator"), "context_length", (1, 0, 0), "2"),
    ],
)  # fmt: skip
def test_every_bad_end_is_a_scored_sample_with_its_reason(
    bench: "Bench", say: Say, ended: str, counts: tuple[int, int, int], answered: str
) -> None:
    bench.engine = Scripted(bench.engine, lambda turn: say(turn) + END)  # type: ignore[assignment]
    for sample in run(bench, submit(bench, 2, capture=None, max_turns=4)):
        use = sample.tool_use
        assert use is not None
        assert use.ended == ended
        assert (use.calls, use.errors, use.malformed) == counts
        assert answered in sample.messages[1].content
        assert KEY in sample.scores


LAB = '''
def stock(item: str) -> str:
    """Look up how many of an item are in stock."""
    return f"{len(item)} of {item}"

def last_word(completion, target, question):
    return completion.split()[-1] == "plums"
'''
ASK = '<tool_call>\n{"name": "stock", "arguments": {"item": "plums"}}\n</tool_call>'


def test_tools_and_scorers_of_the_operator_take_part(
    bench: "Bench", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lab.py").write_text(LAB)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    said = Scripted(bench.engine, lambda turn: (ASK, CALL.format("calculator"), "5 plums")[turn] + END)
    bench.engine = said  # type: ignore[assignment]
    job_id = submit(bench, 3, tools=["stock", "calculator"], scorers=["last_word", "numeric"], capture=None)
    drain = bench.drain(user_tools=("stock=lab:stock",), user_scorers=("last_word=lab:last_word",))
    drain.look()
    drain.close()
    for sample in bench.samples(job_id):
        assert sample.tool_use is not None, sample.error
        assert (sample.tool_use.calls, sample.tool_use.errors) == (2, 0)
        assert [m.content for m in sample.messages if m.role == "tool"] == ["5 of plums", "2"]
        assert sample.scores["last_word,none"].value == 1.0
        prompt = bench.tokenizer.decode(said.asked[f"{sample.id}.1"][0].prompt_ids)
        assert "Look up how many of an item are in stock." in prompt


def test_a_template_that_refuses_the_results_fails_the_sample_with_its_reason(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer: Any = bench.tokenizer
    refusing = "{% if messages[-1].role == 'tool' %}{{ raise_exception('no results here') }}{% endif %}"
    monkeypatch.setattr(tokenizer, "chat_template", refusing + tokenizer.chat_template)
    say = CALL.format("calculator") + END
    bench.engine = Scripted(bench.engine, lambda _turn: say)  # type: ignore[assignment]
    job_id = submit(bench, 2, capture=None)
    bench.drain().look()
    for sample in bench.samples(job_id):
        assert sample.status is SampleStatus.FAILED
        assert sample.error is not None
        assert "no results here" in sample.error.message


def test_a_cut_turn_is_told(bench: "Bench") -> None:
    done = run(bench, submit(bench, 2, sampling={"max_tokens": 6}))
    assert {s.tool_use.ended for s in done if s.tool_use} == {"length"}
    assert {s.finish_reason for s in done} == {"length"}


def test_a_model_without_tools_is_refused(bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    monkeypatch.setattr(bench.tokenizer, "chat_template", template)
    job_id = submit(bench, 1)
    bench.drain().look()
    with bench.database.read() as session:
        error = jobs.get(session, job_id).error
    assert error is not None
    assert "does not offer tools" in error["message"]


def test_a_structure_says_whether_the_template_offers_tools(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    model = bench.engine.model
    for template, offers in (
        (model.tokenizer.chat_template, True),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% if tools %}{{ tools }}{% endif %}", False),
        ("<tool_call>", False),
        ("{% if tools %}{{ raise_exception('no') }}{% endif %}", False),
        (None, False),
    ):
        with subtests.test(str(template)[:60]):
            monkeypatch.setattr(model.tokenizer, "chat_template", template)
            assert discover(model).structure.tool_calls is offers
