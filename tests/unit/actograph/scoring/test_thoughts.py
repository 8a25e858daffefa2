"""Thoughts and answers of completions."""

import pytest

from actograph.scoring.completions import without_thoughts


@pytest.mark.parametrize(
    ("completion", "said"),
    [
        ("5", "5"),
        ("<think>3</think>5", "5"),
        ("so <think>3</think>5", "so 5"),
        ("so <think>3</think>then <think>4</think>5", "so then 5"),
        ("so <think>3</think>then 4</think>5", "5"),
        ("3</think>5", "5"),
        ("so <think>3", "so "),
        ("<think>3<think>4</think>5", "5"),
        ("so <think>3</think>", "so "),
    ],
)
def test_think_blocks_go_and_the_rest_stays(completion: str, said: str) -> None:
    assert without_thoughts(completion) == said
