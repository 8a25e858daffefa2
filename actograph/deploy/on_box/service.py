"""Start, stop and watch the service of a deployment: under `systemd --user`, or under its keeper alone."""

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .layout import BoxError, Layout, private

STOP_SECONDS = 200.0
_KEEPER_SECONDS = 20.0
_POLL_SECONDS = 0.1
_READY = "ready: "


def keeper_pid(layout: Layout) -> int | None:
    """Pid of the running keeper; None if the service does not run."""
    try:
        fd = os.open(layout.lock, os.O_RDWR)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(fd, 32).decode().strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(fd)
    return None


def has_systemd(layout: Layout) -> bool:
    """Whether services of this user run under systemd, also without a login."""
    if shutil.which("systemctl") is None or _systemctl("show-environment").returncode != 0:
        return False
    if Path(f"/var/lib/systemd/linger/{_user()}").exists():
        return True
    asked = subprocess.run(["loginctl", "enable-linger"], capture_output=True, check=False)
    return asked.returncode == 0 and Path(f"/var/lib/systemd/linger/{_user()}").exists()


def start(layout: Layout, release: dict[str, Any]) -> int:
    """Start a release. Returns the size of the log before."""
    python = shlex.quote(str(layout.python(release["env"])))
    library = shlex.quote(str(layout.code(release["code"]) / "lib"))
    variables = f"PYTHONPATH={library} PYTHONSAFEPATH=1 ACTOGRAPH_HOME={shlex.quote(str(layout.home))}"
    root = shlex.quote(str(layout.root))
    keeper = f"exec env {variables} {python} -m actograph.deploy.keeper {root} {release['number']}"
    private(layout.script, f"#!/bin/sh\n{keeper}\n", 0o700)
    command_line = f'exec env {variables} {python} -m actograph "$@"'
    private(layout.root / "actograph", f"#!/bin/sh\n{command_line}\n", 0o700)
    layout.log.parent.mkdir(parents=True, exist_ok=True)
    before = layout.log.stat().st_size if layout.log.exists() else 0
    if has_systemd(layout):
        name = unit_name(layout)
        private(_unit_file(name), unit_text(layout), 0o644)
        layout.save_state(systemd=name)
        for words in (("daemon-reload",), ("enable", name), ("restart", name)):
            if (done := _systemctl(*words)).returncode != 0:
                raise BoxError(f"systemctl --user {' '.join(words)}: {done.stderr.strip()}")
    else:
        layout.save_state(systemd=None)
        with layout.keeper_log.open("ab") as log:
            subprocess.Popen(
                [str(layout.script)], cwd=layout.root, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
    deadline = time.monotonic() + _KEEPER_SECONDS
    while keeper_pid(layout) is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)
    return before


def stop(layout: Layout) -> bool:
    """Stop the service in order. Returns False if it did not run."""
    pid = keeper_pid(layout)
    unit = layout.state()["systemd"]
    if unit:
        # a stopped unit must not come back at the next boot
        _systemctl("disable", "--now", unit)
    if pid is None:
        return False
    if pid and not unit:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while keeper_pid(layout) is not None:
        if time.monotonic() > deadline:
            if pid:
                os.kill(pid, signal.SIGKILL)
            raise BoxError(f"the service (pid {pid}) did not stop within {STOP_SECONDS:.0f} s and was killed")
        time.sleep(_POLL_SECONDS)
    return True


def remove_unit(layout: Layout) -> None:
    """Remove the systemd unit of a stopped service."""
    unit = layout.state()["systemd"]
    if unit:
        _unit_file(unit).unlink(missing_ok=True)
        _systemctl("daemon-reload")


def until_ready(layout: Layout, offset: int, seconds: float) -> Iterator[str]:
    """Yield the lines of the log until the service is ready.

    Raises:
        BoxError: the service ended, or was not ready in time.
    """
    deadline = time.monotonic() + seconds
    while True:
        is_alive = keeper_pid(layout) is not None
        lines, offset = read_log(layout.log, offset)
        for line in lines:
            yield line
            if line.startswith(_READY):
                return
        if not is_alive:
            raise BoxError("the service ended before it was ready")
        if time.monotonic() > deadline:
            raise BoxError(f"the service was not ready within {seconds:.0f} s")
        time.sleep(_POLL_SECONDS)


def read_log(path: Path, offset: int) -> tuple[list[str], int]:
    """Return the complete lines of a log from an offset on, and the offset after them."""
    try:
        with path.open("rb") as log:
            if log.seek(0, os.SEEK_END) < offset:  # rotated
                offset = 0
            log.seek(offset)
            data = log.read()
    except FileNotFoundError:
        return [], 0
    end = data.rfind(b"\n") + 1
    return data[:end].decode(errors="replace").splitlines(), offset + end


def tail(path: Path, lines: int) -> list[str]:
    """Return the last lines of a log."""
    return read_log(path, max(0, path.stat().st_size - 200 * lines))[0][-lines:] if path.exists() else []


def unit_name(layout: Layout) -> str:
    return f"{layout.root.name.lstrip('.')}-service.service"


def unit_text(layout: Layout) -> str:
    """The systemd unit of a deployment."""
    path = str(layout.root).replace("%", "%%")
    return f"""[Unit]
Description=Actograph in {path}
After=network-online.target

[Service]
WorkingDirectory={path}
ExecStart="{path}/service"
Restart=on-failure
RestartSec=10
KillMode=mixed
TimeoutStopSec={STOP_SECONDS:.0f}
StandardOutput=append:{path}/home/logs/keeper.log
StandardError=append:{path}/home/logs/keeper.log

[Install]
WantedBy=default.target
"""


def _unit_file(name: str) -> Path:
    return Path.home() / ".config" / "systemd" / "user" / name


def _systemctl(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        ["systemctl", "--user", *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name
