"""The SSH tunnel to a deployed service: in the background, or in the foreground."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from actograph.contract.errors import ServiceUnavailable
from actograph.deploy.boxes import Deployment
from actograph.deploy.ssh import Ssh
from actograph.stack.ports import free_port, is_free

_OPEN_SECONDS = 30.0
_CLOSE_SECONDS = 5.0


def is_open(deployment: Deployment) -> bool:
    """Whether our tunnel runs."""
    return deployment.tunnel_pid is not None and _is_tunnel(deployment.tunnel_pid, deployment)


def open_tunnel(ssh: Ssh, deployment: Deployment, log: Path) -> Deployment:
    """Open a tunnel in the background, unless it is open.

    Args:
        log: takes ssh's messages.

    Raises:
        ServiceUnavailable: ssh ended, with its last line.
    """
    if is_open(deployment):
        return deployment
    box = deployment.box
    port = box.local_port or deployment.local_port or box.port
    if box.local_port is None and not is_free("127.0.0.1", port):
        port = free_port("127.0.0.1")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as messages:
        process = subprocess.Popen(
            ssh.tunnel_command(port, box.port),
            stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, start_new_session=True,
        )  # fmt: skip
    deadline = time.monotonic() + _OPEN_SECONDS
    while not _listens(port):
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            said = log.read_text(errors="replace").strip().splitlines() or ["no message"]
            raise ServiceUnavailable(f"the tunnel to {box.target} did not open: {said[-1]}")
        time.sleep(0.05)
    # it outlives this process
    process.returncode = 0
    return deployment.model_copy(update={"local_port": port, "tunnel_pid": process.pid})


def close_tunnel(deployment: Deployment) -> Deployment:
    """End the tunnel in the background."""
    pid = deployment.tunnel_pid
    if pid is not None and _is_tunnel(pid, deployment):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + _CLOSE_SECONDS
        while _is_tunnel(pid, deployment) and time.monotonic() < deadline:
            time.sleep(0.05)
    return deployment.model_copy(update={"tunnel_pid": None})


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


def _is_tunnel(pid: int, deployment: Deployment) -> bool:
    """Whether a process is this deployment's ssh, and not another one with the same pid."""
    forward = f"127.0.0.1:{deployment.local_port}:127.0.0.1:{deployment.box.port}"
    asked = subprocess.run(
        ["ps", "-o", "stat=,args=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return forward in asked.stdout and not asked.stdout.lstrip().startswith("Z")
