"""Stop strings and ends of texts, with a byte-level tokenizer made for the purpose."""

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from worker.engine.messages import TextEnd
from worker.engine.tokens.stopping import StopStrings, TextEnds

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
    ends = TextEnds(TextEnd(r"Q[^:]*:\Z", last=":", window=6), tokenizer)
    said = ids("a", ":", "ĠQ", "ue", "stion:", "b", ":")
    assert [ends.ended(said[:n]) for n in range(1, len(said) + 1)] == [False] * 4 + [True, False, False]
    assert ends.ended(ids(*["b"] * 300, "ĠQ", ":"))
    assert not ends.ended(ids("ĠQ", *["b"] * 6, ":"))  # longer than the window
