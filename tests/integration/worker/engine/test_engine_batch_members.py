"""Members of one batch that differ in one thing each, or in many: each is what it is when it runs alone."""

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from actograph.contract.row_selection import NamedPositions, TokenRange
from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import generate, read_texts
from tests.support.token_choosers import EveryKth, TheseTokens
from worker.engine.engine import Engine
from worker.engine.requests import (
    EarlierRows,
    Edit,
    Generation,
    GenerationRequest,
    RowShaping,
    StatisticsOptions,
    TextEnd,
    TokenLogprobs,
)
from worker.engine.runs import RunOptions

if TYPE_CHECKING:
    from tests.integration.worker.engine.conftest import KeepingSink, Way

pytestmark = pytest.mark.integration

EngineOf = Callable[[str], Engine]
MODELS = ["tiny-qwen3", "stories260k"]
PROMPTS = [
    "Once upon a time there was a little girl who had 12 apples and gave 5 of them away.",
    "The cat",
    "Tom has 34 books and Mia has 57 books. How many do they have in total?",
    "a",
    "One day, a dog",
]
HOOKS = ["resid_post.0", "mlp_in.1", "attn_out.1", "logits"]  # as `Way` has them
GREEDY = SamplingSpec(max_tokens=14)
# the trained models are sure of themselves: less heat would choose the same tokens by any seed
SAMPLED = SamplingSpec(max_tokens=14, temperature=3.0, top_p=0.98)
TOLERANCE = 1e-4


def request(engine: Engine, text: str, key: str = "base", **changes: Any) -> GenerationRequest:
    ids = tuple(engine.model.tokenizer(text)["input_ids"])
    return replace(GenerationRequest(key=key, prompt_ids=ids, seed=5), **changes)


def vector(width: int, seed: int) -> torch.Tensor:
    return torch.randn(width, generator=torch.Generator().manual_seed(seed)) * 2.0


def edited(base: Edit, width: int) -> dict[str, tuple[Edit, ...]]:
    """The edit, and edits that differ from it in one thing each."""
    return {
        "as it is": (base,),
        "without": (),
        "coefficient": (replace(base, coefficient=-1.5),),
        "vector": (replace(base, vector=vector(width, 2)),),
        "operation": (replace(base, op="replace"),),
        "hook": (replace(base, hook="resid_post.1"),),
        "positions": (replace(base, positions="generated"),),
        "range": (replace(base, positions=TokenRange(start=1, stop=4)),),
        "another range": (replace(base, positions=TokenRange(start=2, stop=4)),),
        "range to come": (replace(base, positions=TokenRange(start=6, stop=30)),),
        "tokens": (replace(base, chooser=TheseTokens((0, 6))),),
        "other tokens": (replace(base, chooser=TheseTokens((1, 7))),),
        "twice": (base, base),
        "in one order": (base, Edit(hook=base.hook, op="scale", coefficient=-0.5)),
        "in the other order": (Edit(hook=base.hook, op="scale", coefficient=-0.5), base),
    }


@pytest.mark.covering(1)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_edits_that_differ_in_one_thing_each(
    name: str, sampling: SamplingSpec, engine_of: EngineOf, way: "type[Way]"
) -> None:
    engine = engine_of(name)
    width = engine.width_of("resid_post.0")
    base = Edit(hook="resid_post.0", op="add", vector=vector(width, 1), coefficient=0.5)
    kinds = edited(base, width)
    requests = [request(engine, PROMPTS[2], key, edits=edits) for key, edits in kinds.items()]
    batch = way(sampling=sampling)
    batch.assert_alone(engine, requests)
    # a range and a list count in each one's own tokens, however long the others' prompts are
    mixed = [
        request(engine, PROMPTS[i % 5], key, edits=edits) for i, (key, edits) in enumerate(kinds.items())
    ]
    batch.assert_alone(engine, [*mixed, *mixed[::-1][1::2]])
    # all but one are steered alike
    batch.assert_alone(engine, [*(replace(one, edits=(base,)) for one in mixed[:4]), requests[1]])
    _, sink = batch.run(engine, requests)
    seen = [way.rows_of(sink, i, "resid_post.0")[2] for i in range(len(requests))]
    for i, one in enumerate(seen):  # each difference shows, so that a neighbour's edit would be seen
        for j, other in enumerate(seen[:i]):
            hidden = {list(kinds)[i], list(kinds)[j]} == {"without", "hook"}
            rows = min(len(one), len(other))
            assert hidden or not torch.allclose(one[:rows], other[:rows], atol=1e-2), (i, j)


def variants(engine: Engine) -> dict[str, GenerationRequest]:
    """A request, and requests that differ from it in one thing each."""
    base = request(engine, PROMPTS[2])
    tokens = base.prompt_ids
    changes: dict[str, dict[str, Any]] = {
        "as it is": {},
        "longer": {"prompt_ids": request(engine, PROMPTS[0]).prompt_ids},
        "shorter": {"prompt_ids": tokens[:2]},
        "one token": {"prompt_ids": tokens[:1]},
        "last token": {"prompt_ids": (*tokens[:-1], tokens[0])},
        "seed": {"seed": 6},
        "large seed": {"seed": 2**63 - 1},
        "ends after one": {"max_tokens": 1},
        "ends after three": {"max_tokens": 3},
        "goes on": {"max_tokens": 22},
        "log probabilities": {"top_logprobs": 0},
        "three likeliest": {"top_logprobs": 3},
        "prompt's": {"top_logprobs": 1, "score_prompt": True},
        "longer prompt's": {
            "prompt_ids": request(engine, PROMPTS[0]).prompt_ids, "top_logprobs": 4, "score_prompt": True,
        },
        "end of its own": {"stop_at": TextEnd(re.compile(r"[aeiou]$"), "e", 4)},
        "other end": {"stop_at": TextEnd(re.compile(r" $|[st]$"), "s", 4)},
    }  # fmt: skip
    return {key: replace(base, key=key, **change) for key, change in changes.items()}


@pytest.mark.covering(4)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "sampling",
    [
        GREEDY,
        SAMPLED,
        SamplingSpec(max_tokens=14, temperature=4.0, top_k=7),
        SamplingSpec(max_tokens=14, temperature=4.0, top_k=40, top_p=0.9, stop=["ou", "t"]),
        SamplingSpec(
            max_tokens=14, presence_penalty=1.5, frequency_penalty=0.5, logit_bias={3: 4.0, 9: -50.0}
        ),
    ],
    ids=["greedy", "sampled", "top_k", "both and stop", "penalties"],
)
def test_requests_that_differ_in_one_thing_each(
    name: str, sampling: SamplingSpec, engine_of: EngineOf, way: "type[Way]"
) -> None:
    engine = engine_of(name)
    asked = variants(engine)
    members = list(asked.values())
    made = dict(zip(asked, way(sampling=sampling).assert_alone(engine, members), strict=True))
    lengths = {key: len(one.generated_ids) for key, one in made.items()}
    assert lengths["ends after one"] == 1 and lengths["ends after three"] <= 3
    assert len(set(lengths.values())) > 2  # rows that end at different steps were in the batch
    assert [len(of.top) for of in made["three likeliest"].logprobs or ()][:1] == [3]
    assert made["as it is"].logprobs is None and made["as it is"].prompt_logprobs is None
    if sampling.temperature:
        assert len({made[key].generated_ids for key in ("as it is", "seed", "large seed")}) > 1


CHOICES: list[Any] = [
    EveryKth(1),  # all that is run
    EveryKth(3),
    TheseTokens(tuple(range(24, 40))),  # begins late in the generation
    TheseTokens((0, 3)),  # of the prompt alone
    TheseTokens((-1,)),
    TheseTokens((500,)),  # none at all
    EveryKth(1),
    TheseTokens((-2, 19, 20, 21, 25)),
]
SHAPINGS = {
    "rows": RowShaping(),
    "features": RowShaping(columns=(5, 0, 3)),
    "mean": RowShaping(reduce="mean"),
    "max": RowShaping(reduce="max"),
    "last": RowShaping(reduce="last"),
    "statistics": RowShaping(statistics=StatisticsOptions(threshold=0.5)),
    "numbers": RowShaping(statistics=StatisticsOptions(rows=False), columns=slice(4)),
}


@pytest.mark.covering(6)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("shaping", SHAPINGS.values(), ids=SHAPINGS)
def test_each_keeps_rows_of_its_own_choice(
    name: str, shaping: RowShaping, engine_of: EngineOf, way: "type[Way]"
) -> None:
    engine = engine_of(name)
    texts = [PROMPTS[2], PROMPTS[1], PROMPTS[2], PROMPTS[0], PROMPTS[4], PROMPTS[1], PROMPTS[3], PROMPTS[4]]
    summed = EarlierRows() if shaping.summarises else None
    requests = [
        request(engine, text, str(i), chooser=choice, earlier=summed, max_tokens=None if i % 3 else 22)
        for i, (text, choice) in enumerate(zip(texts, CHOICES, strict=True))
    ]
    way(shaping=shaping).assert_alone(engine, requests)
    made, sink = way(shaping=replace(shaping, reduce="none", statistics=None)).run(engine, requests)
    _, every = way(shaping=RowShaping(columns=shaping.columns)).run(
        engine, [replace(one, chooser=None) for one in requests]
    )
    for i, one in enumerate(made):  # the rows that the choice means, of all rows
        total = len(one.prompt_ids) + len(one.generated_ids) - 1
        for hook in HOOKS:
            tokens, _, rows = way.rows_of(sink, i, hook)
            first, _, full = way.rows_of(every, i, hook)
            assert isinstance(first, int)
            assert tokens == wanted(CHOICES[i], len(one.prompt_ids), range(first, total)), (i, hook)
            places = torch.tensor(tokens, dtype=torch.long) - first
            assert torch.equal(rows, full[places]), (i, hook)


def wanted(choice: Any, prompt: int, has: range) -> list[int]:
    """The tokens that a choice means, among those that have rows."""
    if isinstance(choice, EveryKth):
        return [token for token in has if token % choice.stride == 0]
    listed = {token + prompt if token < 0 else token for token in choice.tokens}
    return [token for token in has if token in listed]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("positions", ["all", "prompt", "last_prompt"])
def test_texts_that_are_only_read_differ_in_length_and_edits(
    name: str,
    positions: NamedPositions,
    engine_of: EngineOf,
    way: "type[Way]",
    keeping_sink: "type[KeepingSink]",
) -> None:
    engine = engine_of(name)
    width = engine.width_of("resid_post.0")
    base = Edit(hook="resid_post.0", op="add", vector=vector(width, 1), coefficient=0.5)
    requests = [
        request(engine, PROMPTS[i % 5], key, edits=edits, top_logprobs=i % 3, score_prompt=True)
        for i, (key, edits) in enumerate(edited(base, width).items())
    ]

    def read(asked: Sequence[GenerationRequest]) -> tuple[list[Generation], "KeepingSink"]:
        sink = keeping_sink()
        return read_texts(engine, asked, hooks=HOOKS, sink=sink, positions=positions), sink

    together, sink = read(requests)
    for i, one in enumerate(requests):
        (alone,), own = read([one])
        assert together[i].error is None and together[i].finish_reason == "stop"
        way.assert_rows(sink, i, own)
        way.assert_logprobs(together[i].prompt_logprobs, alone.prompt_logprobs)
        assert len(together[i].prompt_logprobs or ()) == len(one.prompt_ids)


def any_batch(way: "type[Way]", engine: Engine, dice: random.Random) -> tuple["Way", list[GenerationRequest]]:
    """A batch of which nearly everything was thrown."""
    width = engine.width_of("resid_post.0")
    sampling = SamplingSpec(
        max_tokens=dice.randint(1, 18),
        temperature=dice.choice([0.0, 1.3, 4.0]),
        top_p=dice.choice([1.0, 0.8]),
        top_k=dice.choice([None, 1, 20]),
        stop=dice.choice([[], ["the", "."]]),
        presence_penalty=dice.choice([0.0, 1.0]),
        frequency_penalty=dice.choice([0.0, 0.7]),
        logit_bias=dice.choice([{}, {5: 3.0}]),
    )
    shaping = dice.choice(list(SHAPINGS.values()))
    chooses = dice.random() < 0.5
    batch = way(
        sampling=sampling,
        positions="all" if chooses else dice.choice(["all", "all", "prompt", "generated", "last"]),
        shaping=shaping,
        dtype=dice.choice(["model", "float32"]),
        options=RunOptions(slots=dice.choice([0, 2, 3]), shard_bytes=dice.choice([8_000, 1 << 28])),
    )
    kinds = list(
        edited(Edit(hook="resid_post.0", op="add", vector=vector(width, 3), coefficient=0.7), width).values()
    )
    requests = [
        request(
            engine,
            dice.choice(PROMPTS),
            str(i),
            seed=dice.getrandbits(62),
            edits=dice.choice(kinds) if dice.random() < 0.6 else (),
            max_tokens=dice.choice([None, None, 1, 2, 9, 21]),
            top_logprobs=dice.choice([None, None, 0, 2]),
            score_prompt=dice.random() < 0.3,
            chooser=dice.choice(CHOICES) if chooses else None,
        )
        for i in range(dice.randint(2, 7))
    ]
    return batch, requests


@pytest.mark.covering(12)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", range(25))
def test_any_member_of_any_batch_is_what_it_is_alone(
    name: str, seed: int, engine_of: EngineOf, way: "type[Way]"
) -> None:
    engine = engine_of(name)
    batch, requests = any_batch(way, engine, random.Random(seed))
    batch.assert_alone(engine, requests)


def test_a_member_that_is_dropped_changes_no_other(
    engine_of: EngineOf, way: "type[Way]", keeping_sink: "type[KeepingSink]"
) -> None:
    engine = engine_of("tiny-qwen3")
    requests = [request(engine, text, str(i), seed=i) for i, text in enumerate(PROMPTS)]
    whole, kept = way(sampling=SAMPLED).run(engine, requests)
    sink = keeping_sink()
    made = generate(
        engine,
        requests,
        sampling=SAMPLED,
        hooks=HOOKS,
        sink=sink,
        drop=lambda index, tokens: index == 2 and tokens >= 4,
    )
    assert [one.finish_reason for one in made].count("dropped") == 1
    assert made[2].finish_reason == "dropped" and len(made[2].generated_ids) == 4
    for i in (0, 1, 3, 4):
        assert made[i] == whole[i]
        way.assert_rows(sink, i, kept, i)


def test_log_probabilities_are_of_the_row_that_asked(engine_of: EngineOf, way: "type[Way]") -> None:
    engine = engine_of("stories260k")
    asked = [request(engine, text, str(i), seed=i) for i, text in enumerate(PROMPTS)]
    tops = [None, 3, None, 0, 5]
    requests = [replace(one, top_logprobs=top) for one, top in zip(asked, tops, strict=True)]
    made, sink = way(sampling=SAMPLED, hooks=["logits"]).run(engine, requests)
    for i, (one, top) in enumerate(zip(made, tops, strict=True)):
        if top is None:
            assert one.logprobs is None
            continue
        table = way.rows_of(sink, i, "logits")[2].log_softmax(-1)
        assert one.logprobs is not None
        for row, token, said in zip(table, one.generated_ids, one.logprobs, strict=True):
            assert isinstance(said, TokenLogprobs) and said.token_id == token
            assert said.logprob == pytest.approx(float(row[token]), abs=TOLERANCE)
            assert [t for t, _ in said.top] == row.topk(top).indices.tolist()
