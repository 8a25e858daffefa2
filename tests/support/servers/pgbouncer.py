"""pgbouncer in transaction mode in front of a Postgres server: Debian's package `pgbouncer`."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from sqlalchemy.engine import make_url

from actograph.stack.ports import free_port
from tests.support.availability import unavailable
from tests.support.servers import kept
from tests.support.servers.postgres import USERS

_CONFIG = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own}
unix_socket_dir =
auth_type = plain
auth_file = {folder}/users.txt
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 500
"""


@contextmanager
def pooled(url: str, size: int = 4) -> Iterator[str]:
    """A URL of the same database through a pooler with `size` server connections."""
    program = shutil.which("pgbouncer")
    if program is None:
        unavailable("no pgbouncer here (apt-get install pgbouncer)")
    server, own = make_url(url), free_port("127.0.0.1")
    with tempfile.TemporaryDirectory(prefix="actograph-pgbouncer-") as name:
        folder = Path(name)
        config = _CONFIG.format(host=server.host, port=server.port, own=own, folder=folder, size=size)
        (folder / "pgbouncer.ini").write_text(config)
        (folder / "users.txt").write_text(f'"{server.username}" "{server.password}"\n')
        command = [program, "-q", str(folder / "pgbouncer.ini")]
        if os.geteuid() == 0:  # it refuses to run as root
            for path in (folder, *folder.iterdir()):
                shutil.chown(path, USERS[-1])
            command[1:1] = ["-u", USERS[-1]]
        with tempfile.TemporaryFile() as log:
            process = subprocess.Popen(kept(command, signal.SIGTERM), stdout=log, stderr=log)
            try:
                through = server.set(host="127.0.0.1", port=own).render_as_string(hide_password=False)
                _wait(through.replace("postgresql+psycopg", "postgresql"), process)
                yield through
            finally:
                process.terminate()
                process.wait()


def _wait(url: str, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(url, connect_timeout=2).close()
            return
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                unavailable(f"pgbouncer did not start: {error}")
            time.sleep(0.05)
