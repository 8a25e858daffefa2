"""Pieces of text as tokens come: whole characters, nothing of a stop string, and together the final text."""

import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import Unigram
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from actograph.contract.specs import SamplingSpec
from evals.scoring.completions import cut_at_stop
from worker.runners import text
from worker.runners.text import SpokenText
from worker.sample.open_job import OpenJob
from worker.text.text_stream import TextStream
from worker.text.tokenizer import special_ids

TEXT = 'Tom: "naïve" 3 + 4 = 7 ✓ 家族 👩‍👩‍👧 e\u0301 END of it'


@pytest.fixture(scope="module", params=["tiny-qwen3", "stories260k"])
def tokenizer(request: pytest.FixtureRequest, shared: Path) -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(shared / "models" / request.param)
    return loaded


def pieces(stream: TextStream, ids: Sequence[int], seed: int) -> list[str]:
    """What comes out where the ids come in runs of chance lengths."""
    chance, found, start = random.Random(seed), [], 0
    while start < len(ids):
        stop = start + chance.randint(1, 3)
        found.append(stream.feed(ids[start:stop]))
        start = stop
    return found


def test_pieces_are_whole_characters_and_make_up_the_text(
    tokenizer: PreTrainedTokenizerBase, subtests: pytest.Subtests
) -> None:
    for seed in range(5):
        with subtests.test(seed=seed):
            spoken = SpokenText(tokenizer)
            ids = tokenizer.encode(TEXT, add_special_tokens=False)
            given = pieces(TextStream(spoken.of, ()), ids, seed)
            assert all("\ufffd" not in piece for piece in given)
            assert "".join(given) == spoken.of(ids)
            assert sum(map(bool, given)) > len(given) / 4  # it comes while it is generated


def test_nothing_of_a_stop_string_is_given(
    tokenizer: PreTrainedTokenizerBase, subtests: pytest.Subtests
) -> None:
    for stops in [["END"], ["= 7 x", " ✓ "], ["族 👩"], ["4 = 8", "it is"], ["z"]]:
        for seed in range(5):
            with subtests.test(seed=seed, stops=stops):
                spoken = SpokenText(tokenizer)
                ids = tokenizer.encode(TEXT, add_special_tokens=False)
                final = cut_at_stop(spoken.of(ids), stops)
                given = "".join(pieces(TextStream(spoken.of, stops), ids, seed))
                assert final.startswith(given)
                held = len(final) - len(given)
                assert held < max(map(len, stops))


def test_an_incomplete_character_waits_for_its_bytes() -> None:
    data = "a👍b".encode()
    stream = TextStream(lambda ids: bytes(ids).decode(errors="replace"), ())
    assert [stream.feed([byte]) for byte in data] == ["a", "", "", "", "👍", "b"]


def test_special_tokens_are_left_out_but_marks_stay(shared: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "tiny-qwen3")
    said = "<think>\nso\n</think>\n<tool_call>\n{}\n</tool_call><|im_end|>"
    ids = tokenizer.encode(said, add_special_tokens=False)
    assert SpokenText(tokenizer).of(ids) == said.removesuffix("<|im_end|>")


def test_tokens_that_only_the_tokenizer_marks_as_special_are_left_out() -> None:
    words = ["<unk>", "<eos>", "<eot>", "<tool_call>", "<plain>", " done"]
    backend = Tokenizer(Unigram([(word, -1.0) for word in words], unk_id=0))
    backend.decoder = Fuse()
    backend.add_special_tokens([AddedToken(word, special=True) for word in words[:4]])
    backend.add_tokens([AddedToken("<plain>", special=False)])
    # no config names <eot>
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<eos>", unk_token="<unk>")
    assert 2 not in tokenizer.all_special_ids
    ids = [5, 2, 4, 1]
    assert SpokenText(tokenizer).of(ids) == " done<plain>" == tokenizer.decode(ids, skip_special_tokens=True)
    assert SpokenText(tokenizer).of([3]) == "<tool_call>", "marks stay"
    assert special_ids(tokenizer) == {0, 1, 2, 3}


def test_the_token_that_ended_a_generation_is_not_in_its_text() -> None:
    """Whether or not it is special; with `ignore_eos` the model's ends are tokens like others."""
    job: Any = SimpleNamespace(engine=SimpleNamespace(structure=SimpleNamespace(eos_token_ids=[1, 2])))
    assert OpenJob.end_ids(job, SamplingSpec()) == {1, 2}
    assert OpenJob.end_ids(job, SamplingSpec(stop_token_ids=[7])) == {1, 2, 7}
    assert OpenJob.end_ids(job, SamplingSpec(stop_token_ids=[7], ignore_eos=True)) == {7}


def test_a_nul_is_an_unreadable_character_since_no_database_takes_it(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    said, expected = "Tom\0has 3\0", "Tom\ufffdhas 3\ufffd"
    ids = tokenizer.encode(said, add_special_tokens=False)
    assert text.decode(tokenizer, ids, ()) == SpokenText(tokenizer).of(ids) == expected
    assert text.decode(tokenizer, ids, ("has",)) == "Tom\ufffd"
    stream = TextStream(SpokenText(tokenizer).of, ())
    assert "".join(stream.feed([one]) for one in ids) == expected[:-1], "all but its last character"
