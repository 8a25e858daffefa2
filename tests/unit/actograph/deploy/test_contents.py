"""Contents of a deployment, and targets that are refused."""

import ast
from pathlib import Path

import pytest

from actograph.contract.errors import InvalidRequest, ServiceUnavailable
from actograph.deploy import payload
from actograph.deploy.ssh import Ssh

ON_BOX = Path(payload.__file__).with_name("on_box")


def test_a_version_is_its_files_and_a_lock_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = '[project]\ndependencies = ["b"]\n[project.optional-dependencies]\n'
    project += 'server = ["c"]\nservice = ["actograph[server]", "a>=1"]\ndev = ["actograph[service]", "d"]\n'
    (tmp_path / "pyproject.toml").write_text(project)
    (tmp_path / "constraints.txt").write_text("# pins\nb==1  # why\n\na==2\n")
    for package in payload.PACKAGES:
        (tmp_path / package / ".cache").mkdir(parents=True)
        for name in ("x.py", ".x.py.swp", "x.pyc", ".cache/y.py"):
            (tmp_path / package / name).write_text(name)
    monkeypatch.setattr(payload, "CHECKOUT", tmp_path)
    found = payload.of_checkout()
    version = found.version
    assert set(found.files) == {f"{package}/x.py" for package in payload.PACKAGES}
    assert found.requirements == ("a>=1", "b", "c")
    assert found.constraints == ("a==2", "b==1")
    (tmp_path / "api" / "x.py").write_text("changed")
    changed = payload.of_checkout()
    assert (changed.version != version, changed.lock) == (True, found.lock)
    (tmp_path / "constraints.txt").write_text("b==1\na==3\n")
    assert payload.of_checkout().lock != found.lock
    (tmp_path / "constraints.txt").unlink()
    with pytest.raises(ServiceUnavailable, match="needs a checkout"):
        payload.of_checkout()


def test_old_pythons_can_read_the_part_that_runs_on_the_box() -> None:
    files = list(ON_BOX.glob("*.py"))
    assert files
    for file in files:
        ast.parse(file.read_text(), file.name, feature_version=(3, 8))


@pytest.mark.parametrize(
    "target", ["-oProxyCommand=x", "a b", "", "me@", "me@box:port", "me@box:1;ls", "@box"]
)
def test_targets_are_hosts(target: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is not user@host"):
        Ssh(target, "ssh", tmp_path)
    for good in ("box", "me@box", "me@10.0.0.7:2222", "first.last@gpu-1.lab"):
        Ssh(good, "ssh", tmp_path)
