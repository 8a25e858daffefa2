from types import SimpleNamespace

import pytest

from actograph.cli.shell import full_id
from actograph.contract.errors import InvalidRequest, NotFound

A, B, C = "job_" + "a" * 32, "job_ab" + "0" * 30, "job_c" + "0" * 31
ITEMS = [SimpleNamespace(id=known) for known in (A, B, C)]


def test_a_unique_beginning_is_completed(subtests: pytest.Subtests) -> None:
    for typed, whole in {"job_aa": A, "aa": A, "ab": B, "c": C, "job_c0": C}.items():
        with subtests.test(typed):
            assert full_id(typed, "job", lambda _: ITEMS) == whole


def test_other_beginnings_are_refused(subtests: pytest.Subtests) -> None:
    refused = {"a": InvalidRequest, "": InvalidRequest, "job_": InvalidRequest}
    refused |= dict.fromkeys(("d", "ses_a", "job_" + "a" * 33, "AA"), NotFound)
    for typed, error in refused.items():
        with subtests.test(typed), pytest.raises(error):
            full_id(typed, "job", lambda _: ITEMS)
