"""What the worker sets for a model on a CPU, and that a user's own choice stands."""

from worker.__main__ import tune_for_cpu


def test_what_the_user_said_stands() -> None:
    said = {"OMP_WAIT_POLICY": "active", "THP_MEM_ALLOC_ENABLE": "0", "LRU_CACHE_CAPACITY": "9"}
    environment = dict(said)
    tune_for_cpu(environment)
    assert environment == said | {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "256"}
    environment = {"GOMP_SPINCOUNT": "7"}
    tune_for_cpu(environment)
    assert environment["GOMP_SPINCOUNT"] == "7"
