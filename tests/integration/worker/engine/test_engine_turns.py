"""Samples of several turns: every row against a forward over all that the model had before it."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pytest
import torch

from actograph.contract.job_specs import EvaluationSpec
from actograph.contract.row_selection import Positions
from actograph.contract.specs import SamplingSpec
from worker.engine.engine import Engine
from worker.engine.requests import Generation, GenerationRequest, RowChunk
from worker.runners.tool_turns import ToolTurns
from worker.sample.choosers import TurnTokens
from worker.sample.conversation import Conversation, TurnPrompt
from worker.sample.segments import Markup

if TYPE_CHECKING:
    from tests.integration.worker.engine.conftest import KeepingSink

pytestmark = pytest.mark.integration

QUESTIONS = [
    "Tom has 14 apples. Mia gives Tom 23 more. How many apples does Tom have now?",
    "There are 57 coins in a box. Zoe adds 68 more. How many coins are there?",
    "Leo found 90 cards on Monday and 11 on Tuesday. How many cards altogether?",
]
SUMS = ["37", "125", "101"]
HOOKS = ("resid_post.0", "mlp_in.1", "logits")


@pytest.fixture(scope="module")
def engine(engine_of: Callable[[str], Engine]) -> Engine:
    return engine_of("tiny-qwen3")


class Numbered:
    """Hands rows on under the token numbers of the conversation."""

    def __init__(self, sink: "KeepingSink", begun: Sequence[TurnPrompt], samples: Sequence[int]) -> None:
        self._sink, self._begun, self._samples = sink, begun, samples

    def write(self, index: int, rows: Mapping[str, RowChunk]) -> None:
        begun = self._begun[index]
        numbered = {}
        for hook, chunk in rows.items():
            assert chunk.tokens is not None
            tokens = tuple(begun.number(place) for place in chunk.tokens)
            numbered[hook] = RowChunk(0, chunk.tensor, tokens)
        self._sink.write(self._samples[index], numbered)

    def reset(self, index: int) -> None:
        raise AssertionError("nothing runs out of memory here")


class Talk:
    """Conversations with a calculator, run turn by turn in one batch."""

    def __init__(self, engine: Engine, sink: "KeepingSink", positions: Positions = "all") -> None:
        self.engine, self.sink, self.positions = engine, sink, positions
        self.markup = Markup(engine.model.tokenizer)
        body = {"kind": "evaluation", "model": "m", "dataset": {"path": "a.jsonl"}, "tools": "calculator"}
        spec = EvaluationSpec.model_validate(body | {"enable_thinking": False})
        self.form = ToolTurns(spec, engine.model.tokenizer)

    def run(self, questions: Sequence[str], max_tokens: int = 80, **sampling: Any) -> list[Conversation]:
        talks = [Conversation(self.markup) for _ in questions]
        messages: list[list[dict[str, Any]]] = [[{"role": "user", "content": q}] for q in questions]
        results_from: list[int | None] = [None for _ in questions]
        running = list(range(len(questions)))
        while running:
            begun = [
                talks[i].begin(self.form.prompt(messages[i]).token_ids, results_from[i]) for i in running
            ]
            requests = [
                GenerationRequest(
                    key=str(i), prompt_ids=b.ids, seed=i,
                    chooser=TurnTokens(talks[i], b, self.positions, self.markup, b.first_row),
                )
                for i, b in zip(running, begun, strict=True)
            ]  # fmt: skip
            made = self.engine.generate(
                requests, sampling=SamplingSpec(max_tokens=max_tokens, **sampling), hooks=HOOKS,
                sink=Numbered(self.sink, begun, running),
            )  # fmt: skip
            for i, b, generation in zip(running, begun, made, strict=True):
                assert generation.error is None
                talks[i].end(b, generation)
            running = [
                i for i, g in zip(running, made, strict=True) if self.answer(messages[i], g, results_from, i)
            ]
        return talks

    def answer(
        self, messages: list[dict[str, Any]], made: Generation, results_from: list[int | None], i: int
    ) -> bool:
        turn, results = self.form.after_turn(self.text(made.generated_ids).removesuffix("<|im_end|>"))
        if turn:
            following = self.form.prompt([*messages, *turn, *results]).token_ids
            results_from[i] = self.form.results_from(following, [*messages, *turn])
        messages += [*turn, *results]
        return bool(turn)

    def text(self, ids: Sequence[int]) -> str:
        text = self.engine.model.tokenizer.decode(list(ids), skip_special_tokens=False)
        assert isinstance(text, str)
        return text


def stored(sink: "KeepingSink", sample: int, hook: str) -> tuple[list[int], torch.Tensor]:
    chunks = sink.chunks[sample][hook]
    return [t for chunk in chunks for t in chunk.tokens or ()], sink.rows(sample, hook)


def expected(
    engine: Engine, talk: Conversation, reference: Callable[..., dict[str, torch.Tensor]]
) -> dict[str, dict[int, torch.Tensor]]:
    """Token number -> row, each from the forward over its turn's own whole prompt and answer."""
    rows: dict[str, dict[int, torch.Tensor]] = {hook: {} for hook in HOOKS[:2]}
    for turn, generation in zip(talk.turns, talk.generations, strict=True):
        own = reference(engine, generation, HOOKS[:2])
        context = turn.context or 0
        ids = [*generation.prompt_ids, *generation.generated_ids]
        assert ids[context:] == talk.token_ids[turn.start : turn.stop]
        for hook, values in own.items():
            for place in range(context, len(ids) - 1):
                rows[hook][turn.start + place - context] = values[place]
    return rows


def test_every_row_is_that_of_its_turn(
    engine: Engine, keeping_sink: "type[KeepingSink]", reference: Callable[..., dict[str, torch.Tensor]]
) -> None:
    sink = keeping_sink()
    talk = Talk(engine, sink)
    talks = talk.run(QUESTIONS)
    for sample, (conversation, total) in enumerate(zip(talks, SUMS, strict=True)):
        assert len(conversation.turns) == 2
        assert f"#### {total}" in talk.text(conversation.generations[-1].generated_ids)
        assert 0 < (conversation.turns[1].context or 0) < conversation.turns[0].stop
        due = expected(engine, conversation, reference)
        for hook in HOOKS[:2]:
            tokens, rows = stored(sink, sample, hook)
            assert tokens == sorted(due[hook]) == conversation.due_tokens("all", tail_only=False)
            wanted = torch.stack([due[hook][t] for t in tokens])
            torch.testing.assert_close(rows, wanted, atol=1e-4, rtol=1e-4)
        tokens, rows = stored(sink, sample, "logits")
        assert tokens == conversation.due_tokens("all", tail_only=True)
        assert len(rows) == sum(len(g.generated_ids) for g in conversation.generations)
        assert conversation.rows == len(conversation.token_ids) - 2


def test_segments_name_calls_and_results(engine: Engine, keeping_sink: "type[KeepingSink]") -> None:
    talk = Talk(engine, keeping_sink())
    [conversation] = talk.run(QUESTIONS[:1])
    text = {s.name: talk.text(conversation.token_ids[s.start : s.stop]) for s in conversation.segments}
    assert '"expression": "14+23"' in text["tool_call"]
    assert "<tool_response>\n37\n</tool_response>" in text["tool_result"]
    assert "The result is 37." in text["answer"]
    assert conversation.segments[-1].stop == len(conversation.token_ids)
    assert conversation.prompt_tokens == len(conversation.generations[0].prompt_ids)


@pytest.mark.parametrize(
    "positions",
    [
        "tool_result",
        "tool_call",
        "answer",
        ["tool_call", "tool_result"],
        "generated",
        "prompt",
        "last_prompt",
    ],
)
def test_rows_are_chosen_by_their_names(
    engine: Engine, keeping_sink: "type[KeepingSink]", positions: Any
) -> None:
    full, part = keeping_sink(), keeping_sink()
    talks = Talk(engine, full).run(QUESTIONS[:2])
    Talk(engine, part, positions).run(QUESTIONS[:2])
    for sample, conversation in enumerate(talks):
        all_tokens, all_rows = stored(full, sample, HOOKS[0])
        tokens, rows = stored(part, sample, HOOKS[0])
        due = conversation.due_tokens(positions, tail_only=False)
        assert due
        assert tokens == due
        places = [all_tokens.index(token) for token in due]
        torch.testing.assert_close(rows, all_rows[places], atol=1e-5, rtol=1e-5)


def test_a_batch_gives_what_each_sample_gives_alone_also_sampled(
    engine: Engine, keeping_sink: "type[KeepingSink]"
) -> None:
    together = Talk(engine, keeping_sink()).run(QUESTIONS, 40, temperature=1.2)
    again = Talk(engine, keeping_sink()).run(QUESTIONS[:1], 40, temperature=1.2)
    assert again[0].token_ids == together[0].token_ids


def test_a_turn_that_keeps_everything_runs_the_token_that_ended_the_last(engine: Engine) -> None:
    """A template that rewrites nothing: the sample is one unbroken sequence."""
    talk = Conversation(Markup(engine.model.tokenizer))
    first = talk.begin([5, 6, 7])
    talk.end(first, Generation(key="", prompt_ids=(5, 6, 7), generated_ids=(8, 9), finish_reason="stop"))
    second = talk.begin([5, 6, 7, 8, 9, 10, 11], results_from=5)
    assert (second.shared, second.first_row) == (5, 4)
    assert talk.due_tokens("all", tail_only=False) == [0, 1, 2, 3]
    ids = (5, 6, 7, 8, 9, 10, 11)
    talk.end(second, Generation(key="", prompt_ids=ids, generated_ids=(12,), finish_reason="stop"))
    assert talk.token_ids == [*ids, 12]
    assert talk.due_tokens("all", tail_only=False) == list(range(7))
    assert talk.due_tokens("all", tail_only=True) == [2, 3, 6]
    assert talk.due_tokens("generated", tail_only=False) == [3, 4]
    assert talk.due_tokens("tool_result", tail_only=False) == [5, 6]
    assert (talk.turns[1].context, talk.turns[1].prompt_tokens) == (5, 2)
