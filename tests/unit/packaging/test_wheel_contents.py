"""Contents of a wheel, an sdist and an editable install. tests/soak/packaging installs and runs them."""

import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.support.availability import unavailable
from tests.support.servers import Unavailable
from tests.support.wheels import REPO, build, wheel_of_sdist

ROOMS = ("api", "evals", "storage", "worker")
#: these besides Python's must be in it; the comparison with git covers all others
DATA = {
    "actograph/demo/model/model.safetensors",
    "actograph/demo/problems.jsonl",
    "actograph/py.typed",
    "actograph/viewer/static/tokens.js",
    "actograph/_service/api/pages/static/app.js",
    "actograph/_service/api/pages/templates/base.html",
    "actograph/_service/storage/index/migrations/env.py",
    "actograph/_service/worker/engine/nnsight.yaml",
}


def test_wheels_hold_every_file_of_the_package_and_the_rooms_and_no_other(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "actograph", *ROOMS],
        cwd=REPO, capture_output=True, text=True, check=True,
    )  # fmt: skip
    tracked = [file for file in listed.stdout.splitlines() if (REPO / file).exists()]
    expected = {f if f.startswith("actograph/") else f"actograph/_service/{f}" for f in tracked}
    assert expected >= DATA
    try:
        wheels = {"of the sdist": wheel_of_sdist(tmp_path), "of the checkout": build("wheel", tmp_path)}
    except Unavailable as error:
        unavailable(str(error))
    for name, wheel in wheels.items():
        with subtests.test(name), zipfile.ZipFile(wheel) as archive:
            files = {file for file in archive.namelist() if ".dist-info/" not in file}
            assert files == expected
            assert any(file.endswith("licenses/LICENSE") for file in archive.namelist())


def test_an_editable_install_is_a_path_to_the_checkout_alone(tmp_path: Path) -> None:
    """A copy of the rooms would hide what is changed in the checkout."""
    try:
        wheel = build("editable", tmp_path)
    except Unavailable as error:
        unavailable(str(error))
    with zipfile.ZipFile(wheel) as archive:
        files = [file for file in archive.namelist() if ".dist-info/" not in file]
        assert [archive.read(file).decode() for file in files] == [str(REPO)]
