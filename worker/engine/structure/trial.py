"""Runs a model at load; one that fails is refused with what it failed at."""

from collections.abc import Callable
from typing import TypeVar

import torch

from actograph.contract.errors import ModelRefused
from worker.engine.model.device_errors import is_out_of_memory
from worker.engine.model.loaded import LoadedModel

Result = TypeVar("Result")


def tried(model: LoadedModel, doing: str, action: Callable[[], Result]) -> Result:
    """What `action` gives.

    Args:
        doing: what it does, for the message: "when it ...".

    Raises:
        ModelRefused: the model's own code failed. Running out of memory, and a device that fails, are passed
            on as they are.
    """
    try:
        return action()
    except (ModelRefused, torch.AcceleratorError):  # the latter is the device's, not the model's
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ModelRefused(
            f"{model.name}: {type(model.hf).__name__} fails when it {doing} "
            f"({type(error).__name__}: {error}); this model is not supported"
        ) from error
