"""What the worker sets for a model on a CPU, and that a user's own choice stands."""

from worker.__main__ import tune_for_cpu


def test_what_the_user_said_stands() -> None:
    environment = {"OMP_WAIT_POLICY": "active", "THP_MEM_ALLOC_ENABLE": "0"}
    tune_for_cpu(environment)
    assert environment == {"OMP_WAIT_POLICY": "active", "THP_MEM_ALLOC_ENABLE": "0"}
    environment = {"GOMP_SPINCOUNT": "7", "THP_MEM_ALLOC_ENABLE": "1"}
    tune_for_cpu(environment)
    assert environment["GOMP_SPINCOUNT"] == "7"
