"""The number under which a driver's sessions show their problem."""

import pytest

from actograph.drivers.options import problem_index


def test_a_problem_has_the_same_number_whatever_else_the_run_reads(subtests: pytest.Subtests) -> None:
    whole = {name: problem_index("sums", name) for name in ("a", "b", "c", 1, "1")}
    assert len(set(whole.values())) == len(whole)
    assert all(0 <= number < 2**31 for number in whole.values())
    for chosen in (["a"], ["c", "a"], [1]):
        with subtests.test(chosen=chosen):
            assert {name: problem_index("sums", name) for name in chosen}.items() <= whole.items()
    assert problem_index("sums", "a") != problem_index("products", "a")
    # the number of stored sessions must never change
    assert problem_index("sums", "sum-0") == 1631181662
