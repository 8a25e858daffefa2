"""`actograph deploy` to a folder: every step with real processes, without an ssh server."""

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.integration.deploy.conftest import Desk


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_from_an_empty_home_to_its_removal(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    assert desk.deploy("--frozen", "--model", "demo") == 1
    assert "error: --frozen installs nothing, and the box lacks version " in desk.said
    assert names(desk.home) == set(), "frozen leaves no trace"

    monkeypatch.setenv("HF_TOKEN", "secret-of-mine")
    assert desk.deploy("--model", "demo", "--env", "HF_TOKEN", "--env", "A=1") == 0, desk.said
    assert f"  | ready: http://127.0.0.1:{desk.port}" in desk.said, "the log is in view"
    assert f"ready: http://127.0.0.1:{desk.status()['port']}" not in desk.said.splitlines()
    first = desk.served()
    assert (first["options"]["--host"], first["options"]["--model"]) == ("127.0.0.1", "demo")
    assert (first["HF_TOKEN"], first["A"]) == ("secret-of-mine", "1")
    assert first["XDG_CACHE_HOME"] == str(desk.root / "cache")
    assert "SSH_CONNECTION" not in first
    assert "secret-of-mine" not in desk.said + (desk.box / "commands").read_text()
    assert (desk.root / "state.json").stat().st_mode & 0o077 == 0
    assert desk.root.stat().st_mode & 0o077 == 0

    assert desk.deploy("--env", "A=") == 0, desk.said
    assert "not sent again" in desk.said
    second = desk.served()
    assert (second["options"]["--model"], second["HF_TOKEN"], "A" in second) == (
        "demo",
        "secret-of-mine",
        False,
    )

    assert desk.run("stop") == 0
    assert desk.status()["pid"] is None
    assert desk.run("status") == 1
    (desk.root / "home" / "data").touch()
    assert desk.run("destroy", "--yes") == 0, desk.said
    assert names(desk.root) == {"home"}
    assert desk.run("status") == 1
    assert "error: name a deployment; known here: none" in desk.said
    assert desk.deploy("--model", "demo") == 0, "on the data that were kept"
    assert (desk.root / "home" / "data").exists()
    assert desk.run("destroy", "--yes", "--delete-data") == 0, desk.said
    assert names(desk.home) == set()


@pytest.mark.soak
def test_a_running_release_is_not_restarted(desk: Desk) -> None:
    assert desk.deploy("--model", "demo") == 0, desk.said
    first = desk.served()
    assert desk.deploy("--reuse") == 0, desk.said
    for said in ("not sent again", "not installed or imported again", "nothing was restarted"):
        assert said in desk.said
    assert desk.served()["pid"] == first["pid"]
    assert desk.deploy("--frozen") == 0, desk.said
    source = desk.root / "current" / "api" / "app.py"
    source.write_text("changed = True\n")
    assert desk.deploy("--frozen") == 1
    assert desk.deploy() == 0
    assert "as files of it were changed on the box" in desk.said
    assert source.read_text() == ""
    assert desk.served()["pid"] != first["pid"]
    assert desk.status()["release"] == 1


def test_a_broken_release_leaves_the_former_one(desk: Desk) -> None:
    assert desk.deploy("--model", "demo") == 0, desk.said
    first = desk.served()
    # found before anything is stopped
    (desk.checkout / "worker" / "drain" / "drain.py").write_text("raise ImportError('half a commit')\n")
    assert desk.deploy() == 1
    assert "the new version cannot run: ImportError: half a commit. Nothing was stopped" in desk.said
    assert desk.served()["pid"] == first["pid"]
    # found at its start
    (desk.checkout / "worker" / "drain" / "drain.py").write_text("")
    assert desk.deploy("--model", "broken") == 1
    assert "  | loading broken" in desk.said
    assert "release 2 ended before it was ready: error: worker-1 could not start" in desk.said
    assert desk.said.splitlines()[-1].endswith("release 1 serves again")
    assert desk.served()["options"]["--model"] == "demo"
    assert (desk.status()["release"], desk.status()["previous"]) == (1, None)


@pytest.mark.soak
def test_releases_are_changed_back(desk: Desk) -> None:
    assert desk.deploy("--model", "demo") == 0, desk.said
    assert desk.run("rollback") == 1
    assert "error: me@box: there is no former release" in desk.said
    for text in ("a = 1\n", "a = 2\n"):
        (desk.checkout / "api" / "app.py").write_text(text)
        assert desk.deploy() == 0, desk.said
    assert len(names(desk.root / "versions")) == 2, "of older releases nothing is kept"
    assert desk.run("rollback") == 0, desk.said
    assert (desk.root / "current" / "api" / "app.py").read_text() == "a = 1\n"
    assert desk.served()["PYTHONPATH"] == str((desk.root / "current").resolve())
    assert desk.run("rollback") == 0, desk.said
    assert (desk.status()["release"], desk.status()["previous"]) == (3, 2)


def test_other_programs_are_left_alone(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", desk.port)):
        assert desk.deploy("--model", "demo") == 1
        assert f"port {desk.port} is used by pid {os.getpid()} (" in desk.said
    assert desk.deploy("--model", "demo") == 0, desk.said
    pid_file = desk.root / "service.pid"
    ours = pid_file.read_text()
    with subprocess.Popen(["sleep", "600"]) as other:
        pid_file.write_text(f"{other.pid} {ours.split()[1]}\n")
        assert desk.run("stop") == 0
        assert "it did not run" in desk.said, "the pid is another program's by now"
        assert other.poll() is None
        other.kill()
    pid_file.write_text(ours)
    assert desk.run("stop") == 0
    assert "stopped" in desk.said
    (desk.home / "other" / "notes").mkdir(parents=True)
    assert desk.deploy("--folder", "other") == 1
    assert "other has other files (notes); choose another --folder" in desk.said


def test_a_box_that_does_not_answer(desk: Desk) -> None:
    assert desk.deploy(target="me@nowhere") == 1
    assert desk.said == "error: no connection to me@nowhere: ssh: Could not resolve hostname nowhere\n"
    assert desk.deploy(target="-oProxyCommand=x") == 1
    assert desk.deploy("--env", "NOT_SET") == 1
    assert "error: --env NOT_SET: this shell has no such variable" in desk.said
    assert desk.deploy("--fresh", "--frozen") == 1
    assert "choose one of --reuse, --fresh and --frozen" in desk.said


SYSTEMCTL = """\
#!/bin/sh
# starts what the unit says; `disable` ends it
shift
echo "$*" >> {box}/systemctl
for unit; do :; done
unit={home}/.config/systemd/user/$unit
case $1 in
enable)
    cd "$(sed -n 's/^WorkingDirectory=//p' "$unit")" || exit 1
    eval "set -- $(sed -n 's/^ExecStart=//p' "$unit")"
    "$@" < /dev/null > /dev/null 2>&1 &;;
disable) kill "$(cut -d' ' -f1 {home}/.actograph-deploy/service.pid)";;
esac
"""


@pytest.mark.soak
def test_systemd_runs_the_service(desk: Desk) -> None:
    programs = desk.box / "bin"
    programs.mkdir()
    (programs / "systemctl").write_text(SYSTEMCTL.format(box=desk.box, home=desk.home))
    (programs / "loginctl").write_text("#!/bin/sh\n")
    for program in programs.iterdir():
        program.chmod(0o700)
    assert desk.deploy("--model", "demo") == 0, desk.said
    assert "release 1 starts under systemd --user" in desk.said
    assert desk.served()["options"]["--model"] == "demo"
    assert desk.run("stop") == 0
    verbs = [line.split()[0] for line in (desk.box / "systemctl").read_text().splitlines()]
    assert [verb for verb in verbs if verb != "show-environment"] == [
        "daemon-reload", "enable", "disable", "daemon-reload",
    ]  # fmt: skip
    assert names(desk.home / ".config" / "systemd" / "user") == set()


def test_the_python_of_a_deployment_is_that_of_the_next_one(desk: Desk) -> None:
    assert desk.deploy("--model", "demo") == 0, desk.said
    assert desk.run("me@box", "--model", "other", "--no-smoke") == 0, desk.said
    assert desk.served()["options"]["--model"] == "other"
    assert f"those of {desk.python} as they are" in desk.said or "the running release uses them" in desk.said
    assert not list((desk.root / "envs").glob("*")), "no environment was made"
