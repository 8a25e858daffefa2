"""Full depth, all cards and all graphs on a GPU that is not there; one small card is in `make test`."""

import pytest

from tests.support.fake_cuda_process import (
    assert_admitted,
    assert_planned,
    assert_replayed,
    checked,
    run_cases,
)


@pytest.mark.parametrize(
    ("shape", "slots", "cards", "least"),
    # Gemma 2 9B leaves 5 GB of a card of 24
    [
        ("0.6b", 256, [16, 24, 80], 40),
        ("8b", 256, [24, 80], 40),
        ("30b-a3b", 256, [80], 40),
        ("gemma2", 64, [24, 80], 24),
    ],
)
def test_every_capture_is_admitted_where_the_weights_fit(
    shape: str, slots: int, cards: list[int], least: int
) -> None:
    runs = checked(run_cases(f"admission-{shape}")[f"admission-{shape}"])
    assert sorted({one["card"] for one in runs}) == cards
    assert_admitted(runs, slots, least=least)


def test_graphs_of_every_number_of_rows_and_plans_of_many_rows() -> None:
    found = run_cases("graphs-every-bucket", "choice-256")
    graphs = checked(found["graphs-every-bucket"])
    assert graphs["at load"] > 10
    assert_replayed(graphs)
    assert_planned(checked(found["choice-256"]))
