"""A child that dies again and again before it is ready is not replaced for ever."""

from pathlib import Path

import pytest

from actograph.contract.errors import ModelRefused
from worker.process.setup_attempts import MOST, SetupAttempts


def test_so_many_attempts_are_allowed_and_one_more_is_not(tmp_path: Path) -> None:
    for _ in range(MOST):
        SetupAttempts(tmp_path / "attempts").begin()
    with pytest.raises(ModelRefused, match="died 5 times while it loaded the model"):
        SetupAttempts(tmp_path / "attempts").begin()


def test_success_starts_the_count_anew(tmp_path: Path) -> None:
    attempts = SetupAttempts(tmp_path / "attempts")
    for _ in range(3 * MOST):
        attempts.begin()
        attempts.succeeded()
