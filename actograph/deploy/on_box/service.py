"""The service of a deployment: under `systemd --user`, else as a process of its own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Sequence  # noqa: UP035 (Python 3.8)

from .layout import Box, BoxError, last_line, log, run

START_SECONDS, STOP_SECONDS, POLL_SECONDS = 30.0, 60.0, 0.05


def environment(box: Box, release: dict[str, Any]) -> dict[str, str]:
    """Return the variables of a release: those of the user's login, overridden by those that were sent."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("SSH_")}
    variables.setdefault("XDG_CACHE_HOME", str(box.root / "cache"))
    downloaded = Path.home() / ".cache" / "huggingface"
    if downloaded.is_dir():
        variables.setdefault("HF_HOME", str(downloaded))
    variables.update(release["environment"])
    return variables


def become_service(box: Box) -> None:
    """Replace this process with `actograph up` of the current release."""
    release = box.state()["current"]
    source = str(box.versions / release["version"])
    variables = dict(environment(box, release), PYTHONPATH=source, PYTHONSAFEPATH="1")
    box.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    output = os.open(box.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    # renamed: whoever sees the file must find the pid in it
    part = box.root / "service.pid.part"
    part.write_text(f"{os.getpid()} {start_time(os.getpid())}\n")
    part.replace(box.pid_file)
    os.chdir(Path.home())
    command = [release["python"], "-m", "actograph", "up", "--home", str(box.home), "--host", "127.0.0.1"]
    command += ["--port", str(release["port"]), "--model", release["model"], *release["options"]]
    os.execve(command[0], command, variables)


def running(box: Box) -> int | None:
    """Return the pid of the running service. The start time tells it from a later process with its pid."""
    try:
        pid, started = box.pid_file.read_text().split()
    except (OSError, ValueError):
        return None
    return int(pid) if start_time(int(pid)) == started else None


def start_time(pid: int) -> str | None:
    """Return the start of a process in ticks of the machine; None if it has ended."""
    fields = fields_of(pid)
    return None if fields[0] in "ZX" else fields[19]


def fields_of(pid: int) -> list[str]:
    """Return state, parent and so on, as in proc(5); the state is `X` if there is no such process."""
    try:
        # the name in parentheses before them may have spaces
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", "0"]


def start(box: Box, release: dict[str, Any], seconds: float) -> None:
    """Start the current release, and show its log until it is ready.

    Raises:
        BoxError: it ended before, or was not ready in time.
    """
    name = f"release {release['number']}"
    offset = box.log.stat().st_size if box.log.exists() else 0
    begin(box, box.versions / release["version"] / "actograph" / "deploy")
    log(f"{name} starts under {'systemd --user' if box.unit.exists() else 'a supervisor of its own'}")
    began, last = time.monotonic(), f"see {box.log}"
    while True:
        # in this order: its last lines are read after its end
        has_begun, is_alive = box.pid_file.exists(), running(box) is not None
        lines, offset = read_log(box.log, offset)
        for last in lines:
            log(last)
            if last.startswith("ready: "):
                return
        passed = time.monotonic() - began
        if not is_alive and (has_begun or passed > START_SECONDS):
            raise BoxError(f"{name} ended before it was ready: {last}")
        if passed > seconds:
            raise BoxError(f"{name} was not ready within {seconds:.0f} s")
        time.sleep(POLL_SECONDS)


def begin(box: Box, folder: Path) -> None:
    """Start `become_service` in a process of its own; `folder` has this package."""
    command = [sys.executable, "-m", "on_box", "run", str(box.root)]
    if not has_systemd():
        subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        return
    box.unit.parent.mkdir(parents=True, exist_ok=True)
    box.unit.write_text(unit_text(command, folder))
    systemctl("daemon-reload")
    systemctl("enable", "--now", box.unit.name)


def unit_text(command: Sequence[str], folder: Path) -> str:
    """The systemd unit of the service; `%` stands for a variable in units."""
    words = " ".join(f'"{word}"' for word in command)
    unit = f"""[Unit]
Description=Actograph

[Service]
WorkingDirectory={folder}
ExecStart={words}
Restart=on-failure
RestartSec=10
KillMode=mixed
TimeoutStopSec={STOP_SECONDS:.0f}

[Install]
WantedBy=default.target
"""
    return unit.replace("%", "%%")


def has_systemd() -> bool:
    """Whether systemd runs services of this user, also without a login."""
    if shutil.which("systemctl") is None or run(["systemctl", "--user", "show-environment"]).returncode != 0:
        return False
    lingers = Path("/var/lib/systemd/linger") / Path.home().owner()
    return lingers.exists() or run(["loginctl", "enable-linger"]).returncode == 0


def systemctl(*words: str) -> None:
    done = run(["systemctl", "--user", *words])
    if done.returncode != 0:
        raise BoxError(f"systemctl --user {' '.join(words)}: {last_line(done.stderr)}")


def stop(box: Box) -> bool:
    """Stop the service; workers finish their running samples. Returns False if it did not run."""
    pid = running(box)
    if box.unit.exists():
        systemctl("disable", "--now", box.unit.name)
        box.unit.unlink()
        systemctl("daemon-reload")
    elif pid is not None:
        os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while True:
        left = running(box)
        if left is None:
            break
        if time.monotonic() > deadline:
            os.kill(left, signal.SIGKILL)  # the kernel ends its children
        time.sleep(POLL_SECONDS)
    if box.pid_file.exists():
        box.pid_file.unlink()
    return pid is not None


def refuse_others(box: Box, port: int) -> None:
    """Raise BoxError if a process that is not of this service listens on the port."""
    sockets = listening(port)
    if not sockets:
        return
    pid, ours = holder(sockets), running(box)
    if pid is None:
        user = sorted(sockets.values())[0]
        raise BoxError(f"port {port} is used by another user (uid {user}); choose another --port")
    ancestor = pid
    while ancestor > 1 and ancestor != ours:
        ancestor = int(fields_of(ancestor)[1])
    if ancestor != ours:
        words = " ".join(Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0"))
        raise BoxError(
            f"port {port} is used by pid {pid} ({words.strip()[:120]}), which was left alone; "
            "choose another --port"
        )


def listening(port: int) -> dict[str, str]:
    """Return sockets that listen on a TCP port, as /proc/PID/fd names them, with their users' uids."""
    found = {}
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        for line in table.read_text().splitlines()[1:] if table.exists() else ():
            fields = line.split()
            if fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
                found[f"socket:[{fields[9]}]"] = fields[7]
    return found


def holder(sockets: dict[str, str]) -> int | None:
    """Return a process that has one of the sockets open; None if it belongs to another user."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(os.readlink(str(link)) in sockets for link in (process / "fd").iterdir()):  # noqa: PTH115
                return int(process.name)
        except OSError:  # ended, or of another user
            continue
    return None


def read_log(path: Path, offset: int) -> tuple[list[str], int]:
    """Return the complete lines of a log from an offset on, and the offset after them."""
    if not path.exists():
        return [], 0
    with path.open("rb") as log:
        log.seek(offset)
        data = log.read()
    end = data.rfind(b"\n") + 1
    return data[:end].decode(errors="replace").splitlines(), offset + end
