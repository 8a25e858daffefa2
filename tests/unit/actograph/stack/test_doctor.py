"""Findings of `actograph doctor`."""

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from actograph.demo import MODEL_DIR
from actograph.settings import Settings
from actograph.stack import doctor
from actograph.stack.doctor import CHECKS, UpProblem
from actograph.stack.ports import free_port


@pytest.mark.integration
def test_each_problem_has_its_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    database = f"sqlite:///{tmp_path / 'foreign.db'}"
    (tmp_path / "foreign.db").touch()
    monkeypatch.setattr(doctor, "count_cards", lambda: 99)
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("device", {}, "of 99 NVIDIA GPUs: install a torch for the driver's CUDA"),
        ("model", {"model": str(tmp_path)}, "has no config.json; name the folder of a checkpoint"),
        ("home", {"home": tmp_path / "open"}, "chmod go-w"),
        ("disk", {"disk_floor_bytes": 1 << 60}, "choose another --home"),
        ("redis", {"broker_url": "redis://127.0.0.1:9/0"}, r"does not answer \(.*refused.*\); start it"),
        ("index", {"database_url": database}, "run: actograph service migrate"),
        ("store", {"artifact_url": "file:///proc/no/such"}, "No such file or directory: '/proc/no'"),
        (
            "store",
            {"artifact_url": "ftp://host/x"},
            "an artifact URL is file:///folder or s3://bucket/prefix",
        ),
    ]
    for check, settings, cure in cases:
        with subtests.test(check), pytest.raises(UpProblem, match=cure):
            CHECKS[check](Settings(**{"home": tmp_path / "home", **settings}))


@pytest.mark.integration
def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(UpProblem, match="--device cuda:1, but this machine has no NVIDIA GPU"):
        CHECKS["device"](Settings(device="cuda:1"))


def test_a_port_of_another_program(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        def hang_up() -> None:
            taken.accept()[0].close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(UpProblem, match=f"another program uses 127.0.0.1:{port}"):
            CHECKS["port"](Settings(home=tmp_path, port=port))
        thread.join()


@pytest.mark.integration
def test_a_machine_in_order(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", port=free_port("127.0.0.1"), model=f"demo={MODEL_DIR}")
    found = list(doctor.examine(settings))
    assert [finding.check for finding in found if not finding.is_ok] == []
    assert [finding.check for finding in found] == list(CHECKS)
    assert not (tmp_path / "home").exists()


def test_the_model_is_named_with_its_quantisation_and_its_adapter(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    for content, adapter, said in (
        ({}, "", ""),
        ({"quantization_config": {"quant_method": "fp8"}}, "", ", quantised by fp8 (verified on a CPU)"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "", ", quantised by mxfp4 (unverified)"),
        ({}, "+org/sad", ", with the adapter org/sad"),
    ):
        with subtests.test(said):
            (tmp_path / "config.json").write_text(json.dumps(content))
            assert CHECKS["model"](Settings(model=f"m={tmp_path}{adapter}")) == f"{tmp_path}{said}"
    for text, cure in (
        (json.dumps({"quantization_config": {"quant_method": "awq"}}), "needs: pip install gptqmodel"),
        ("[]", "is no JSON object; copy the checkpoint again"),
    ):
        with subtests.test(cure), pytest.raises(UpProblem, match=cure):
            (tmp_path / "config.json").write_text(text)
            CHECKS["model"](Settings(model=str(tmp_path)))
