"""Thoughts and answers of completions."""

import pytest

from actograph.scoring.completions import without_thoughts


def test_think_blocks_go_and_the_rest_stays(subtests: pytest.Subtests) -> None:
    for completion, said in [
        ("5", "5"),
        ("<think>3</think>5", "5"),
        ("so <think>3</think>5", "so 5"),
        ("so <think>3</think>then <think>4</think>5", "so then 5"),
        ("so <think>3</think>then 4</think>5", "5"),
        ("3</think>5", "5"),
        ("so <think>3", "so "),
        ("<think>3<think>4</think>5", "5"),
        ("so <think>3</think>", "so "),
    ]:
        with subtests.test(completion=completion, said=said):
            assert without_thoughts(completion) == said
