from collections.abc import Iterator

import pytest

from actograph.cli.identifiers import resolve
from actograph.contract.errors import InvalidRequest, NotFound

A, B, C = "job_" + "a" * 32, "job_ab" + "0" * 30, "job_c" + "0" * 31


@pytest.mark.parametrize(("typed", "whole"), [("job_aa", A), ("aa", A), ("ab", B), ("c", C), ("job_c0", C)])
def test_a_beginning_that_one_item_has(typed: str, whole: str) -> None:
    assert resolve(typed, "job", [A, B, C]) == whole


def test_a_beginning_that_several_have() -> None:
    with pytest.raises(InvalidRequest, match="not unique"):
        resolve("a", "job", [A, B, C])


@pytest.mark.parametrize("typed", ["d", "ses_a", "job_" + "a" * 33, "AA"])
def test_a_beginning_that_none_has(typed: str) -> None:
    with pytest.raises(NotFound):
        resolve(typed, "job", [A, B, C])


@pytest.mark.parametrize("typed", ["", "job_"])
def test_nothing_typed(typed: str) -> None:
    with pytest.raises(InvalidRequest):
        resolve(typed, "job", [A])


def test_whole_ids_are_not_looked_up() -> None:
    def known() -> Iterator[str]:
        raise AssertionError("the list was read")
        yield ""

    assert resolve(A, "job", known()) == A
