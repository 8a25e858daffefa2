"""The process that runs the end of a model: its answers, its errors, and its own end."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from transformers import LlamaConfig

from actograph.analysis.checkpoint import Checkpoint
from actograph.analysis.lens import logit_lens
from actograph.contract.errors import ActographError, InvalidRequest
from tests.support.architectures import COMMON
from tests.support.checkpoints import save_random
from worker.analysis.model_end import ModelEnd

pytestmark = pytest.mark.integration


def test_a_process_answers_as_the_checkpoint_does_and_is_gone_afterwards(tmp_path: Path) -> None:
    save_random(LlamaConfig(**COMMON), tmp_path)
    rows = np.random.default_rng(0).normal(size=(5, 32))
    with ModelEnd(tmp_path) as model:
        assert (model.layers, model.width, model.vocabulary) == (3, 32, 512)
        found, due = model.ask("lens", rows, top=3), logit_lens(rows, Checkpoint(tmp_path), top=3)
        np.testing.assert_array_equal(found.tokens, due.tokens)
        np.testing.assert_allclose(found.logits, due.logits)
        with pytest.raises(InvalidRequest, match=r"rows must be \[n, 32\]"):
            model.ask("logits", rows[:, :4])
        assert model.ask("constant", 3).shape == (1,), "it goes on after an error"
        pid = model._process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ActographError, match="ended with status -9"):
            model.ask("logits", rows)
    assert not Path(f"/proc/{pid}").exists()


def test_a_folder_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"config\.json cannot be read"):
        ModelEnd(tmp_path)
