"""The contents of a deployment: files, requirements, pins and fingerprints."""

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from actograph.contract.errors import InvalidRequest
from actograph.deploy import payload
from actograph.deploy.env_file import read_env
from actograph.deploy.on_box import install
from actograph.deploy.on_box.layout import BoxError, Layout


def test_this_installation_is_collected() -> None:
    found = payload.of_this_installation(None)
    assert {name.partition("/")[0] for name in found.files if "dist-info" not in name} == set(
        payload.PACKAGES
    )
    assert "actograph/demo/problems.jsonl" in found.files
    assert not any("__pycache__" in name for name in found.files)
    words = {line.split(">")[0].split("=")[0].split("[")[0].split("<")[0] for line in found.requirements}
    assert {"httpx", "torch", "nnsight", "scipy", "fastapi", "celery"} <= words
    assert not words & {"actograph", "actograph-server", "pytest", "mkdocs-material"}
    assert not any("extra" in line for line in found.requirements)
    assert any(line.startswith("torch==") for line in found.lock)


def test_fingerprints_follow_the_contents(tmp_path: Path) -> None:
    one = payload.Payload({"a": b"1"}, ("x",), ("x==1",))
    assert one.code == payload.Payload({"a": b"1"}, (), ()).code
    assert one.code != payload.Payload({"a": b"2"}, (), ()).code
    assert one.code != payload.Payload({"b": b"1"}, (), ()).code
    assert one.env("python") != one.env("other")
    assert one.env("python") != payload.Payload({}, ("x",), ("x==2",)).env("python")


def test_a_lock_file_replaces_the_pins(tmp_path: Path) -> None:
    lock = tmp_path / "lock.txt"
    with pytest.raises(InvalidRequest, match="no such file"):
        payload.of_this_installation(lock)
    lock.write_text("# all\ntorch==2.9.0  # ours\n\n")
    assert payload.of_this_installation(lock).lock == ("torch==2.9.0",)


def unpacked(contents: payload.Payload, layout: Layout) -> None:
    stream = io.BytesIO()
    contents.write_tar(stream)
    stream.seek(0)
    with tarfile.open(fileobj=stream) as tar:
        tar.extractall(layout.code(f"{contents.code}.part"), filter="data")


def test_a_version_is_verified_on_the_box(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    contents = payload.Payload({"pkg/a.py": b"1", "pkg/b.py": b"2"}, (), ())
    assert install.code_state(layout, contents.code) == "missing"
    unpacked(contents, layout)
    install.place_code(layout, contents.code)
    assert install.code_state(layout, contents.code) == "ok"
    (layout.code(contents.code) / "lib/pkg/b.py").write_text("3")
    assert install.code_state(layout, contents.code) == "pkg/b.py"
    unpacked(contents, layout)
    (layout.code(f"{contents.code}.part") / "lib/pkg/a.py").unlink()
    with pytest.raises(BoxError, match=r"not received: pkg/a\.py"):
        install.place_code(layout, contents.code)


@pytest.mark.integration
def test_an_environment_is_installed_from_shipped_wheels(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "box")
    wheels = layout.root / "wheels" / "w"
    wheels.mkdir(parents=True)
    made = wheels / "actograph_probe-1.0-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as wheel:
        wheel.writestr("actograph_probe.py", "VALUE = 7\n")
        info = "actograph_probe-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: actograph-probe\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    said: list[str] = []
    request = {
        "env": "e", "python": sys.executable, "on_top": True, "wheels": "w", "pip": ["--no-index"],
        "requirements": ["actograph-probe", "httpx>=0.27"], "lock": ["actograph-probe==1.0"],
    }  # fmt: skip
    name = install.make_env(layout, request, said.append)
    assert install.newest_env(layout, "e") == name == "e-1"
    program = "import actograph_probe, httpx; print(actograph_probe.VALUE)"
    assert subprocess.check_output([layout.python(name), "-c", program], text=True) == "7\n"
    assert said[-1].endswith("successfully installed actograph-probe-1.0")
    assert install.make_env(layout, request, said.append) == install.newest_env(layout, "e") == "e-2"
    with pytest.raises(BoxError, match=r"pip install: .*actograph-probe"):
        install.make_env(layout, request | {"lock": ["actograph-probe==2"]}, said.append)
    assert install.newest_env(layout, "e") == "e-2", "an incomplete one is not taken"


def test_environment_files(tmp_path: Path) -> None:
    file = tmp_path / "service.env"
    file.write_text("# keys\nexport A=1\nB='x y'\nC=a=b\n\n")
    assert read_env(file) == {"A": "1", "B": "x y", "C": "a=b"}
    file.write_text("A=1\nsecret words\n")
    with pytest.raises(InvalidRequest, match=r"service\.env:2: not a line NAME=value$"):
        read_env(file)
