"""Sizes by a config alone against loads: every architecture, shares of real ranks, and the command."""

import json
from pathlib import Path

import pytest

from actograph.cli.main import main
from tests.support.architectures import ARCHITECTURES
from tests.support.checkpoints import save_random
from tests.support.config_sizes import assert_sizes
from tests.support.rank_sizes import sizes_of_ranks
from worker.engine.model.from_config import sizes_of


def test_every_architecture_has_the_weights_and_keys_of_its_load(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for name, architecture in ARCHITECTURES.items():
        for dtype in ("float32", "bfloat16"):
            with subtests.test(name, dtype=dtype):
                assert_sizes(architecture.config(), tmp_path / f"{name}-{dtype}", dtype)


def test_each_of_two_ranks_holds_what_the_config_gives(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name in ("llama", "tied", "phi3", "gpt_neox", "qwen3_moe"):
        config = ARCHITECTURES["qwen3" if name == "tied" else name].config()
        config.tie_word_embeddings = name == "tied"
        folder = tmp_path / name
        folder.mkdir()
        save_random(config, folder)
        found = sizes_of(str(folder), dtype="bfloat16", ranks=2)
        with subtests.test(name):
            made = sizes_of_ranks(folder, 2, folder)
            assert made == [[found.weights_bytes, found.token_bytes]] * 2


def test_the_command_needs_no_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ARCHITECTURES["qwen3"].config().save_pretrained(tmp_path)
    arguments = ["estimate", "--model", str(tmp_path), "--card", "24GiB", "--capture", "resid_post@all"]
    assert main([*arguments, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["weights_bytes"] == sizes_of(str(tmp_path)).weights_bytes
    assert main([*arguments[:4], "24GiB", "--tensor-parallel", "3"]) == 1
    assert "cannot be divided among 3 ranks" in capsys.readouterr().err
