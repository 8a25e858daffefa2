"""OpenSSH as a subprocess: the user's configuration, keys and agent apply."""

import json
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from actograph.contract.errors import ActographError, ServiceUnavailable

#: exit status of ssh itself
_SSH_FAILED = 255


class BoxFailed(ActographError):
    """A step on the box failed."""

    code = "box_failed"


class Ssh:
    """Commands on a box over one shared connection.

    Args:
        target: `user@host[:port]`.
        command: the ssh command, with flags.

    Raises:
        ServiceUnavailable: (of all methods) no connection, with ssh's last line.
    """

    def __init__(self, target: str, command: str) -> None:
        host, _, port = target.partition(":")
        self.target = target
        self._command = shlex.split(command)
        self._where = [*(("-p", port) if port else ()), host]
        self._control = Path(tempfile.mkdtemp(prefix="actograph-"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if (self._control / "s").exists():
            subprocess.run([*self._shared(), "-O", "exit", *self._where], capture_output=True, check=False)
        shutil.rmtree(self._control, ignore_errors=True)

    def _shared(self) -> list[str]:
        options = ("ControlMaster=auto", f"ControlPath={self._control / 's'}", "ControlPersist=60")
        timeouts = ("ConnectTimeout=20", "ServerAliveInterval=15")
        return [*self._command, "-T", *(word for one in (*options, *timeouts) for word in ("-o", one))]

    def tunnel_command(self, local_port: int, port: int) -> list[str]:
        """The command that forwards a local port to the box's loopback, on a connection of its own."""
        options = (
            "ControlMaster=no",
            "ControlPath=none",
            "ExitOnForwardFailure=yes",
            "ServerAliveInterval=15",
        )
        forward = ("-L", f"127.0.0.1:{local_port}:127.0.0.1:{port}")
        return [*self._command, "-N", "-T", *(w for o in options for w in ("-o", o)), *forward, *self._where]

    def run(self, script: str, stdin: IO[bytes] | None = None) -> str:
        """Run a shell script and return its output.

        Raises:
            BoxFailed: its exit status is not 0.
        """
        done = subprocess.run(
            [*self._shared(), *self._where, f"sh -c {shlex.quote(script)}"],
            stdin=stdin or subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        if done.returncode != 0:
            raise self._failure(done.returncode, done.stderr.decode(errors="replace"))
        return done.stdout.decode(errors="replace")

    def call(
        self,
        command: Sequence[str],
        request: dict[str, Any],
        note: Callable[[str], None],
        log: Callable[[str], None],
    ) -> dict[str, Any]:
        """Run a command of `on_box` and return its result.

        Args:
            note: takes remarks, one line each.
            log: takes lines of the service's logs.

        Raises:
            BoxFailed: the command reported an error.
        """
        with tempfile.TemporaryFile() as said:
            process = subprocess.Popen(
                [*self._shared(), *self._where, shlex.join(command)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
            )
            assert process.stdin is not None and process.stdout is not None
            try:
                with process.stdin as stdin:
                    stdin.write(json.dumps(request).encode())
            except BrokenPipeError:
                pass
            last: dict[str, Any] = {}
            try:
                with process.stdout as lines:
                    for line in lines:
                        last = json.loads(line)
                        if "note" in last:
                            note(last["note"])
                        elif "log" in last:
                            log(last["log"])
            finally:
                if process.poll() is None and "result" not in last:
                    process.terminate()
                status = process.wait()
            said.seek(0)
            text = said.read().decode(errors="replace")
        if "error" in last:
            raise BoxFailed(last["error"])
        if "result" not in last:
            raise self._failure(status, text)
        result: dict[str, Any] = last["result"]
        return result

    def _failure(self, status: int, stderr: str) -> ActographError:
        lines = [line.strip() for line in stderr.splitlines() if line.strip()]
        reason = " | ".join(lines[-3:]) or f"exit status {status}"
        if status == _SSH_FAILED:
            return ServiceUnavailable(f"no connection to {self.target}: {reason}")
        return BoxFailed(f"{self.target}: {reason}")
