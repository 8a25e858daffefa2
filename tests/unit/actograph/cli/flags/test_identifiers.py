import pytest

from actograph.cli.flags.identifiers import resolve
from actograph.contract.errors import InvalidRequest, NotFound

A, B, C = "job_" + "a" * 32, "job_ab" + "0" * 30, "job_c" + "0" * 31


@pytest.mark.parametrize(("typed", "whole"), [("job_aa", A), ("aa", A), ("ab", B), ("c", C), ("job_c0", C)])
def test_a_beginning_that_one_item_has(typed: str, whole: str) -> None:
    assert resolve(typed, "job", lambda _: [A, B, C]) == whole


def test_a_beginning_that_several_have() -> None:
    with pytest.raises(InvalidRequest, match="not unique"):
        resolve("a", "job", lambda _: [A, B, C])


@pytest.mark.parametrize("typed", ["d", "ses_a", "job_" + "a" * 33, "AA"])
def test_a_beginning_that_none_has(typed: str) -> None:
    with pytest.raises(NotFound):
        resolve(typed, "job", lambda _: [A, B, C])


@pytest.mark.parametrize("typed", ["", "job_"])
def test_nothing_typed(typed: str) -> None:
    with pytest.raises(InvalidRequest):
        resolve(typed, "job", lambda _: [A])


def test_the_service_is_asked_for_the_beginning_alone() -> None:
    asked = []

    def known(beginning: str) -> list[str]:
        asked.append(beginning)
        return [B]

    assert resolve("ab", "job", known) == B
    assert resolve(A, "job", known) == A  # a whole id is not looked up
    assert asked == ["job_ab"]
