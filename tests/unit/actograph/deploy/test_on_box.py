"""Releases, ports, logs and removal on the box, and the keeper."""

import fcntl
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from actograph.deploy import keeper
from actograph.deploy.on_box import __main__ as box
from actograph.deploy.on_box import install, ports, service
from actograph.deploy.on_box.layout import BoxError, Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "actograph").mkdir()
    return Layout(tmp_path / "actograph")


def release(number: int) -> dict[str, object]:
    return {"code": f"c{number}", "env": f"e{number}", "port": 8420, "arguments": ["--model", "demo"]}


def test_releases_keep_secrets_to_their_owner(layout: Layout) -> None:
    number = layout.add_release(release(1), "KEY=secret\n")
    assert layout.release(number) == release(1) | {"number": 1}
    assert layout.secrets_file(1).stat().st_mode & 0o077 == 0
    program = keeper.program_of(layout, 1, {"SSH_CLIENT": "x", "PATH": "/bin"})
    assert program.command[-2:] == ["--model", "demo"]
    assert program.environment == {"PATH": "/bin", "KEY": "secret", "ACTOGRAPH_HOME": str(layout.home)}


def test_old_releases_are_removed_with_their_files(layout: Layout) -> None:
    for number in range(1, 7):
        layout.add_release(release(number), "")
        for folder in (layout.code(f"c{number}"), layout.env(f"e{number}")):
            folder.mkdir(parents=True)
    layout.save_state(current=6, previous=1)
    install.remove_unused(layout)
    kept = {"1", "4", "5", "6"}
    assert {path.stem for path in (layout.root / "releases").iterdir()} == kept
    assert {path.name[1:] for path in (layout.root / "code").iterdir()} == kept
    assert {path.name[1:] for path in (layout.root / "envs").iterdir()} == kept


def test_destroy_leaves_only_the_named(layout: Layout) -> None:
    for name in ("home/artifacts/a", "home/logs/b", "code/c"):
        (layout.root / name).parent.mkdir(parents=True, exist_ok=True)
        (layout.root / name).write_text("")
    for bad in ("../x", "/etc", "home/none"):
        with pytest.raises(BoxError, match="no such file or folder"):
            box.destroy(layout, {"keep": [bad]})
    box.destroy(layout, {"keep": ["home/artifacts"]})
    assert [str(p.relative_to(layout.root)) for p in sorted(layout.root.rglob("*"))] == [
        "home",
        "home/artifacts",
        "home/artifacts/a",
    ]
    box.destroy(layout, {"keep": []})
    assert not layout.root.exists()


def test_a_running_keeper_is_seen_by_its_lock(layout: Layout) -> None:
    assert service.keeper_pid(layout) is None
    layout.lock.write_text("123")
    assert service.keeper_pid(layout) is None, "a dead keeper's file"
    with layout.lock.open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert service.keeper_pid(layout) == 123


def test_a_strangers_port_is_named_and_left(layout: Layout) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(BoxError, match=f"port {port} is used by pid {os.getpid()} "):
            ports.free(layout, port)
    assert ports.free(layout, port) is None


def test_a_stale_process_of_ours_is_ended(layout: Layout) -> None:
    program = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); "
    program += "print(s.getsockname()[1], flush=True); time.sleep(99)"
    environment = os.environ | {"ACTOGRAPH_HOME": str(layout.home)}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        said = ports.free(layout, int(process.stdout.readline()))
        assert said is not None
        assert said.startswith(f"ended pid {process.pid}, a stale process of this deployment")
        assert process.wait(20) != 0


def test_logs_are_read_by_lines(layout: Layout) -> None:
    layout.log.parent.mkdir(parents=True)
    layout.log.write_text("one\ntwo\nthr")
    lines, offset = service.read_log(layout.log, 0)
    assert lines == ["one", "two"]
    with layout.log.open("a") as log:
        log.write("ee\n")
    assert service.read_log(layout.log, offset) == (["three"], 14)
    layout.log.write_text("new\n")
    assert service.read_log(layout.log, 14) == (["new"], 4), "it was rotated"
    assert service.tail(layout.log, 5) == ["new"]


def test_a_service_that_ends_is_not_waited_for(layout: Layout) -> None:
    with pytest.raises(BoxError, match="ended before it was ready"):
        list(service.until_ready(layout, 0, 60))


def test_the_unit_is_valid(layout: Layout, tmp_path: Path) -> None:
    text = service.unit_text(layout)
    assert f'ExecStart="{layout.root}/service"' in text
    assert "Restart=on-failure" in text
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze to verify the unit")
    (layout.root / "service").write_text("#!/bin/sh\n")
    (layout.root / "service").chmod(0o700)
    unit = tmp_path / service.unit_name(layout)
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", unit], capture_output=True, text=True, check=False
    )
    assert str(unit.name) not in done.stderr, done.stderr
