"""An OpenSSH server of our own on loopback, for an unprivileged user with an empty home.

Root makes that user and removes it at the end. Others log in as themselves, with a folder as their home.
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
START_SECONDS = 60.0
_SERVER = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
SetEnv HOME={home} TMPDIR={folder}/tmp PATH={python}/bin:/usr/bin:/bin LD_LIBRARY_PATH={python}/lib
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
    """`ssh -F folder/config box` logs in; `close` removes everything that was started or written."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="actograph-sshd-"))
        # others must be able to enter it
        self.folder.chmod(0o755)
        self.home = self.folder / "home"
        self._is_root = os.getuid() == 0
        self._user = f"actograph-{secrets.token_hex(4)}" if self._is_root else getpass.getuser()
        self._process: subprocess.Popen[bytes] | None = None
        self.python = self.folder / "python" / "bin" / Path(sys.executable).resolve().name
        self.ssh = f"ssh -F {self.folder / 'config'}"

    def create(self) -> None:
        """Make the user and start the server. Raises Unavailable."""
        if not PROGRAM.is_file():
            raise Unavailable(f"no {PROGRAM}: install openssh-server")
        if self._is_root:
            # the password `*` is none, but not locked either
            options = (
                "--create-home",
                "--home-dir",
                str(self.home),
                "--skel",
                "/var/empty",
                "--password",
                "*",
            )
            _run("useradd", *options, self._user)
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        else:
            self.home.mkdir()
        self._copy_python()
        for name in ("key", "host_key"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name))
        (self.folder / "tmp").mkdir()
        (self.folder / "tmp").chmod(0o1777)
        port = free_port("127.0.0.1")
        python = self.folder / "python"
        values = {
            "port": port,
            "folder": self.folder,
            "home": self.home,
            "user": self._user,
            "python": python,
        }
        (self.folder / "sshd_config").write_text(_SERVER.format(**values))
        (self.folder / "config").write_text(_CLIENT.format(**values))
        host_key = (self.folder / "host_key.pub").read_text()
        (self.folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}")
        command = [str(PROGRAM), "-D", "-e", "-f", str(self.folder / "sshd_config")]
        with (self.folder / "sshd.log").open("wb") as log:
            self._process = subprocess.Popen(kept(command, signal.SIGTERM), stderr=log)
        self._await(port)

    def _await(self, port: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError as error:
                if self._process is None or self._process.poll() is not None or time.monotonic() > deadline:
                    log = (self.folder / "sshd.log").read_text()
                    raise Unavailable(f"sshd did not start: {log[-400:]}") from error
                time.sleep(0.05)

    def _copy_python(self) -> None:
        """Copy this Python to where the user may run it, with all packages of this environment."""
        copy = self.folder / "python"
        unused = shutil.ignore_patterns("__pycache__", "test", "site-packages", "share", "config-*", "*.a")
        shutil.copytree(sys.base_prefix, copy, symlinks=True, ignore=unused)
        site = next((copy / "lib").glob("python3*")) / "site-packages"
        site.mkdir()
        ours = [path for path in sys.path if path.endswith("site-packages")]
        (site / "tests.pth").write_text("".join(f"{path}\n" for path in ours))
        for path in ours:
            user = self._user if self._is_root else ""
            if subprocess.run(
                kept(["/usr/bin/test", "-r", f"{path}/torch"], signal.SIGTERM, user), check=False
            ).returncode:
                raise Unavailable(f"the test's user cannot read {path}")

    def processes(self) -> list[psutil.Process]:
        """Processes of the box that have its home in their arguments."""
        found = []
        for process in psutil.process_iter():
            try:
                if str(self.home) in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:  # ended
                continue
        return found

    def close(self) -> None:
        """Stop the server, end the user's processes, remove the user and all files."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
        for process in self.processes():
            process.kill()
        if self._is_root:
            for process in psutil.process_iter(["username"]):
                if process.info["username"] == self._user:
                    process.kill()
            subprocess.run(["userdel", self._user], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
