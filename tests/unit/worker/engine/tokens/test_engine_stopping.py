"""Stop strings and the tracker, with a byte-level tokenizer made for the purpose."""

import re

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from worker.engine.requests import TextEnd
from worker.engine.tokens.stopping import RowTracker, StopStrings, TextEnds

PIECES = ["a", "b", "c", "Que", "stion", "stion:", ":", "Ġ", "ĠQ", "ue", "Ċ", "Ã", "©", "<end>"]


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    plain = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(PIECES)}, unk_token="a"))
    plain.decoder = decoders.ByteLevel()
    wrapped: PreTrainedTokenizerFast = PreTrainedTokenizerFast(tokenizer_object=plain)  # type: ignore[no-untyped-call]
    return wrapped


def ids(*pieces: str) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


def test_a_stop_string_ends_with_the_token_that_completes_it(
    tokenizer: PreTrainedTokenizerFast, subtests: pytest.Subtests
) -> None:
    for stop, before, last in [
        ("Question:", ["a", "Que", "stion"], ":"),
        ("Question:", ["a", "Que"], "stion:"),
        ("Que", ["a", "b"], "Que"),  # may be followed by more of the same token
        ("ion", ["Que"], "stion:"),
        (" Q", ["c"], "ĠQ"),
        ("\n\n", ["Ċ"], "Ċ"),
        ("a ", ["a"], "Ġ"),
        ("é", ["b", "Ã"], "©"),
        ("<end>", ["b"], "<end>"),
    ]:
        with subtests.test(stop=stop, before=before, last=last):
            stops = StopStrings([stop, "never seen"], tokenizer)
            for n in range(1, len(before) + 1):
                assert not stops.ended(ids(*before[:n]))
            assert stops.ended(ids(*before, last))
            assert stops.ended(ids(*["b"] * 300, *before, last))


def test_a_text_ends_where_its_pattern_does(tokenizer: PreTrainedTokenizerFast) -> None:
    ends = TextEnds(TextEnd(re.compile(r"Q[^:]*:\Z"), last=":", window=6), tokenizer)
    said = ids("a", ":", "ĠQ", "ue", "stion:", "b", ":")
    assert [ends.ended(said[:n]) for n in range(1, len(said) + 1)] == [False] * 4 + [True, False, False]
    assert ends.ended(ids(*["b"] * 300, "ĠQ", ":"))
    assert not ends.ended(ids("ĠQ", *["b"] * 6, ":"))  # longer than the window


def tracker(tokenizer: PreTrainedTokenizerFast, **changes: object) -> RowTracker:
    options = {
        "rows": 3, "max_tokens": 4, "eos_ids": ids("<end>"), "stops": StopStrings(["ab"], tokenizer),
        "should_stop": lambda: False, "on_step": None, "device": torch.device("cpu"),
    } | changes  # fmt: skip
    return RowTracker(**options)  # type: ignore[arg-type]


def feed(follow: RowTracker, *steps: list[int]) -> list[list[bool]]:
    return [follow(torch.tensor([[0, t] for t in step]), None).tolist() for step in steps]  # type: ignore[arg-type]


def test_rows_end_for_their_own_reasons(tokenizer: PreTrainedTokenizerFast) -> None:
    follow = tracker(tokenizer)
    a, b, c, end = ids("a", "b", "c", "<end>")
    done = feed(follow, [a, c, c], [b, c, end], [end, c, a], [c, c, a])
    assert done == [[False] * 3, [True, False, True], [True, False, True], [True] * 3]
    assert follow.tokens == [[a, b], [c, c, c, c], [c, end]]
    assert follow.reasons == ["stop", "length", "stop"]
    assert follow.ended_at == [2, 4, 2]
    assert not follow.cancelled


def test_a_batch_whose_time_is_up_ends_the_rows_that_still_run(tokenizer: PreTrainedTokenizerFast) -> None:
    now = [100.0]
    follow = tracker(tokenizer, time_limit=5.0, clock=lambda: now[0], max_tokens=3)
    b, end = ids("b")[0], ids("<end>")[0]
    now[0] = 105.0
    assert feed(follow, [b, end, b]) == [[False, True, False]]
    now[0] = 105.1
    assert feed(follow, [b, b, end]) == [[True, True, True]]
    assert follow.reasons == ["timeout", "stop", "stop"]
    assert follow.ended_at == [2, 1, 2]
    assert not follow.cancelled
