"""OpenSSH as a subprocess: the user's configuration, keys and agent apply."""

import io
import json
import re
import shlex
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from actograph.contract.errors import ActographError, InvalidRequest, ServiceUnavailable

#: exit status of ssh itself
_SSH_FAILED = 255
_TARGET = re.compile(r"(?P<host>(?:[\w.-]+@)?\w[\w.-]*)(?::(?P<port>\d{1,5}))?", re.ASCII)
_ON_BOX = Path(__file__).with_name("on_box")
#: takes one line of a log
Tell = Callable[[str], None]


class BoxFailed(ActographError):
    """A step on the box failed."""


class Ssh:
    """Commands on a box over one connection, which asks for a password or a second factor once.

    ssh holds the connection in the background (`ControlMaster`) until the context ends, or longer if it
    carries the tunnel: after `forward`, or if it was open before.

    Args:
        target: `user@host[:port]`, or a host of the OpenSSH configuration.
        command: the ssh command, with flags such as -F or -J.
        socket: path of the connection's control socket.

    Raises:
        InvalidRequest: `target` is something else.
        ServiceUnavailable: (of all methods) no connection, with ssh's last lines.
    """

    def __init__(self, target: str, command: str, socket: Path) -> None:
        match = _TARGET.fullmatch(target)
        if match is None:
            raise InvalidRequest(f"{target!r} is not user@host[:port]")
        port = ("-p", match["port"]) if match["port"] else ()
        self.target = target
        self._ssh = [*shlex.split(command), "-S", str(socket), *port]
        self._host = match["host"]
        self._socket = socket
        self.was_open = self._stays_open = False

    def __enter__(self) -> Self:
        self._socket.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.was_open = self._stays_open = self.is_open()
        if not self.was_open:
            self._socket.unlink(missing_ok=True)
            options = ("-o", "ConnectTimeout=20", "-o", "ServerAliveInterval=15")
            # -f: goes to the background after questions for passwords
            self._checked([*self._ssh, "-f", "-N", "-M", *options, self._host])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._stays_open:
            self.close()

    def is_open(self) -> bool:
        """Whether ssh holds a connection."""
        return self._socket.exists() and self._control("check") == 0

    def close(self) -> None:
        """End the connection, and the tunnel with it."""
        self._stays_open = False
        if self._socket.exists():
            self._control("exit")

    def forward(self, local_port: int, port: int) -> None:
        """Forward a port of this machine's loopback to one of the box's, and keep the connection open."""
        where = f"127.0.0.1:{local_port}:127.0.0.1:{port}"
        self._checked([*self._ssh, "-O", "forward", "-L", where, self._host])
        self._stays_open = True

    def _control(self, command: str) -> int:
        words = [*self._ssh, "-O", command, self._host]
        return subprocess.run(words, capture_output=True, check=False).returncode

    def _checked(self, words: list[str]) -> None:
        # not a pipe: the background process keeps stderr open
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said, check=False
            )
            if done.returncode != 0:
                raise self._failure(_SSH_FAILED, said)

    def stream(self, command: str, stdin: IO[bytes] | int = subprocess.DEVNULL) -> Iterator[str]:
        """Run a command and yield the lines of its output.

        Raises:
            BoxFailed: its exit status is not 0; the message has its last lines of stderr.
        """
        with tempfile.TemporaryFile() as said:
            words = [*self._ssh, "-T", self._host, command]
            with subprocess.Popen(words, stdin=stdin, stdout=subprocess.PIPE, stderr=said) as process:
                try:
                    for line in process.stdout or ():
                        yield line.decode(errors="replace").rstrip("\n")
                except BaseException:  # Ctrl-C, or the reader stops: `tail -f` would not end by itself
                    process.terminate()
                    raise
            if process.returncode != 0:
                raise self._failure(process.returncode, said)

    def push(self, files: Mapping[str, Path | bytes], folder: str) -> None:
        """Send files to a new folder of the box, which replaces a former one."""
        place = shlex.quote(folder)
        script = f"umask 077 && rm -rf {place} && mkdir -p {place} && tar -xzf - -C {place}"
        for _ in self._send(files, script):
            pass

    def call(self, command: str, request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
        """Run a command of `on_box` on the box and return its result.

        The request goes through stdin, for it may have secrets: arguments are visible to other users.

        Raises:
            BoxFailed: the command reported an error.
        """
        files: dict[str, Path | bytes] = {f"on_box/{path.name}": path for path in _ON_BOX.glob("*.py")}
        files["request.json"] = json.dumps(request).encode()
        script = (
            'umask 077; d=$(mktemp -d) && tar -xzf - -C "$d" && cd "$d" && '
            f'python3 -m on_box {command} request.json; status=$?; rm -rf "$d"; exit $status'
        )
        answer: dict[str, Any] = {}
        for line in self._send(files, script):
            if line.startswith("{"):  # some shells greet
                answer = json.loads(line)
                if "log" in answer:
                    tell(answer["log"])
        if "error" in answer:
            raise BoxFailed(f"{self.target}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _send(self, files: Mapping[str, Path | bytes], script: str) -> Iterator[str]:
        """Run a shell script with a gzipped tar file at stdin, and yield its output."""
        with tempfile.TemporaryFile() as archive:
            with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=3) as tar:
                for name, content in files.items():
                    data = content if isinstance(content, bytes) else content.read_bytes()
                    info = tarfile.TarInfo(name)
                    info.size, info.mode = len(data), 0o600
                    tar.addfile(info, io.BytesIO(data))
            archive.seek(0)
            yield from self.stream(f"sh -c {shlex.quote(script)}", archive)

    def _failure(self, status: int, said: IO[bytes]) -> ActographError:
        said.seek(0)
        lines = [line.strip() for line in said.read().decode(errors="replace").splitlines() if line.strip()]
        reason = " | ".join(lines[-3:]) or f"exit status {status}"
        if status == _SSH_FAILED:
            return ServiceUnavailable(f"no connection to {self.target}: {reason}")
        return BoxFailed(f"{self.target}: {reason}")
