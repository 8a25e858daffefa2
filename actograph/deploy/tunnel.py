"""Records of deployments on this machine, and their SSH tunnels."""

import hashlib
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Self

from actograph.contract.errors import NotFound
from actograph.deploy.ssh import Ssh
from actograph.stack.ports import free_port, is_free

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Deployment:
    """A deployment that this machine made or manages.

    Args:
        target: `user@host[:port]`.
        folder: its folder on the box; relative to the user's home.
        ssh: the ssh command.
        port: port of the service on the box's loopback.
        local_port: port of the tunnel here; None before the first one.
        python: Python on the box whose packages are used; None for an environment of the deployment's own.
    """

    target: str
    folder: str = ".actograph-deploy"
    ssh: str = "ssh"
    port: int = 8420
    local_port: int | None = None
    python: str | None = None

    @property
    def url(self) -> str:
        return f"http://{_LOOPBACK}:{self.local_port}"

    @contextmanager
    def connected(self, home: Path) -> Iterator[Ssh]:
        """Connect to the box. The control socket is in `home`, as paths of sockets must be short."""
        digest = hashlib.sha256(f"{self.target} {self.folder}".encode()).hexdigest()[:8]
        with Ssh(self.target, self.ssh, home / "deploy" / digest) as ssh:
            yield ssh

    def with_tunnel(self, ssh: Ssh, local_port: int | None = None) -> Self:
        """Open the tunnel, unless it is open. Its port here is the former one, the box's, or a free one."""
        if ssh.was_open and self.local_port and local_port in (None, self.local_port) and self.answers():
            return self
        wanted = local_port or self.local_port or self.port
        if local_port is None and not is_free(_LOOPBACK, wanted):
            wanted = free_port(_LOOPBACK)
        ssh.forward(wanted, self.port)
        return replace(self, local_port=wanted)

    def answers(self) -> bool:
        """Whether a program listens at this end of the tunnel."""
        try:
            socket.create_connection((_LOOPBACK, self.local_port or 0), timeout=5).close()
        except OSError:
            return False
        return True


class Records:
    """Deployments by target, as files in a home folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._folder = home / "deploy"

    def all(self) -> list[Deployment]:
        files = sorted(self._folder.glob("*.json"))
        return [Deployment(**json.loads(file.read_text(encoding="utf-8"))) for file in files]

    def find(self, target: str | None) -> Deployment:
        """Return the deployment of a target, or the only one. Raises NotFound if that is ambiguous."""
        known = {one.target: one for one in self.all()}
        if target is not None:
            # it may have been made from another machine
            return known.get(target, Deployment(target))
        if len(known) != 1:
            raise NotFound(f"name a deployment; known here: {', '.join(known) or 'none'}")
        return next(iter(known.values()))

    def save(self, deployment: Deployment) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._file(deployment).write_text(json.dumps(asdict(deployment)), encoding="utf-8")

    def forget(self, deployment: Deployment) -> None:
        self._file(deployment).unlink(missing_ok=True)

    def _file(self, deployment: Deployment) -> Path:
        return self._folder / f"{deployment.target.replace(':', '_')}.json"
