"""Admission of large models at full depth on a GPU that is not there; a small one is in `make test`."""

import pytest

from tests.support.fake_cuda_process import assert_admitted, run_cases


@pytest.mark.parametrize(
    ("shape", "slots", "cards", "least"),
    # Gemma 2 9B leaves 5 GB of a card of 24
    [("8b", 256, [24, 80], 40), ("30b-a3b", 256, [80], 40), ("gemma2", 64, [24, 80], 24)],
)
def test_every_capture_is_admitted_where_the_weights_fit(
    shape: str, slots: int, cards: list[int], least: int
) -> None:
    runs = run_cases(f"admission-{shape}")[f"admission-{shape}"]
    assert sorted({one["card"] for one in runs}) == cards
    assert_admitted(runs, slots, least=least)
