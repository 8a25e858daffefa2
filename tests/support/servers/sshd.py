"""An OpenSSH server of our own on loopback, for an unprivileged user with an empty home.

Root makes that user and removes it at the end. Others log in as themselves, with a folder of their own in
place of the home.
"""

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from actograph.stack.ports import free_port
from tests.support.servers import Unavailable, kept

PROGRAM = Path("/usr/sbin/sshd")
START_SECONDS = 20.0
_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 100
SetEnv {variables}
"""
_CLIENT = """\
Host box
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
"""


class SshServer:
    """`ssh -F config box` logs in; `close` removes everything that was started or written."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="actograph-sshd-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._is_root = os.getuid() == 0
        self.user = f"actograph-{secrets.token_hex(4)}" if self._is_root else getpass.getuser()
        self.home = self.folder / "home"
        self.port = 0

    @property
    def ssh(self) -> str:
        """The ssh command with this server's configuration."""
        return f"ssh -F {self.folder / 'config'}"

    def create(self) -> None:
        """Make the user, start the server. Raises Unavailable."""
        if not PROGRAM.is_file() or shutil.which("ssh-keygen") is None:
            raise Unavailable(f"no {PROGRAM}: install openssh-server to run this test")
        # others must be able to enter it
        self.folder.chmod(0o755)
        if self._is_root:
            _run(
                "useradd",
                "--create-home",
                "--home-dir",
                str(self.home),
                "--skel",
                "/var/empty",
                "--password",  # none, but not locked either
                "*",
                self.user,
            )
        else:
            self.home.mkdir()
        for name in ("key", "host_key"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name))
        shutil.copy(self.folder / "key.pub", self.folder / "authorized_keys")
        (self.folder / "authorized_keys").chmod(0o644)
        self.port = free_port("127.0.0.1")
        host_key = (self.folder / "host_key.pub").read_text()
        (self.folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {host_key}")
        values = {"port": self.port, "folder": self.folder, "user": self.user}
        scratch = self.folder / "tmp"
        scratch.mkdir()
        scratch.chmod(0o1777)
        library = self.folder / "python" / "lib"
        variables = f"HOME={self.home} TMPDIR={scratch} LD_LIBRARY_PATH={library}"
        (self.folder / "sshd_config").write_text(_CONFIG.format(**values, variables=variables))
        (self.folder / "config").write_text(_CLIENT.format(**values))
        self._start()

    def _start(self) -> None:
        if self._is_root:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        log = self.folder / "sshd.log"
        command = [str(PROGRAM), "-D", "-e", "-f", str(self.folder / "sshd_config")]
        with log.open("wb") as messages:
            self._process = subprocess.Popen(kept(command, signal.SIGTERM), stderr=messages)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise Unavailable(f"sshd did not start: {log.read_text()[-400:]}") from error
                time.sleep(0.05)

    def python(self) -> str:
        """A Python with all packages of this one, which the user can run."""
        base = Path(sys.executable).resolve().parent.parent
        copy = self.folder / "python"
        if not (copy / "bin").is_dir():
            # a link per file: the user may not enter the folders of the original
            shutil.copytree(base, copy, symlinks=True, copy_function=_link_or_copy)
        venv = self.folder / "venv"
        program = copy / "bin" / Path(sys.executable).resolve().name
        environment = os.environ | {"LD_LIBRARY_PATH": str(copy / "lib")}
        _run(str(program), "-m", "venv", "--without-pip", str(venv), environment=environment)
        site = next((venv / "lib").glob("python3*")) / "site-packages"
        ours = [path for path in sys.path if path.endswith("site-packages")]
        (site / "tests.pth").write_text("".join(f"{path}\n" for path in ours))
        for path in ours:
            if _run_as(self.user, "/usr/bin/test", "-r", f"{path}/torch/__init__.py"):
                raise Unavailable(f"the user of the test cannot read {path}")
        return str(venv / "bin" / "python")

    def processes(self) -> list[psutil.Process]:
        """Processes of the box that work in its home."""
        found = []
        for process in psutil.process_iter():
            try:
                if str(self.home) in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def close(self) -> None:
        """Stop the server, end the user's processes, remove the user and all files."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(20)
        for process in self.processes():
            process.kill()
        if self._is_root:
            for process in psutil.process_iter(["username"]):
                if process.info["username"] == self.user:
                    process.kill()
            subprocess.run(["userdel", self.user], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _run_as(user: str, *command: str) -> int:
    """Exit status of a command run by the user of the box."""
    words = kept(list(command), signal.SIGTERM, user if os.getuid() == 0 else "")
    return subprocess.run(words, capture_output=True, check=False).returncode


def _run(*command: str, environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
