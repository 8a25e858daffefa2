"""The folder of a deployment on a box, over SSH."""

import shlex
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from actograph.deploy.payload import digest_of_folder
from actograph.deploy.ssh import Ssh

Tell = Callable[[str], None]
_ON_BOX = Path(__file__).parent / "on_box"


class Remote:
    """Commands in the folder of a deployment.

    Args:
        root: the folder on the box; absolute.
        python: a Python 3.11 or newer on the box.
        note: takes remarks.
        log: takes lines of the service's logs.
    """

    def __init__(self, ssh: Ssh, root: str, python: str, note: Tell, log: Tell) -> None:
        self._ssh = ssh
        self.root = root
        self._python = python
        self._note = note
        self._log = log
        self._tools = f"{root}/tools/{digest_of_folder(_ON_BOX)}"
        self._has_tools = False

    def call(self, command: str, **request: Any) -> dict[str, Any]:
        """Run a command of `on_box`. Raises BoxFailed, ServiceUnavailable."""
        self._send_tools()
        words = ["env", f"PYTHONPATH={self._tools}", "PYTHONSAFEPATH=1", self._python, "-m", "on_box"]
        return self._ssh.call([*words, command, self.root], request, self._note, self._log)

    def unpack(self, write: Callable[[IO[bytes]], None], folder: str, *, zipped: bool = False) -> None:
        """Send a tar file, which `write` makes, and unpack it in a folder below the root.

        The folder is replaced in one step when all is there.
        """
        target = shlex.quote(f"{self.root}/{folder}")
        part = shlex.quote(f"{self.root}/{folder}.incoming")
        script = (
            f"umask 077 && rm -rf {part} && mkdir -p {part} && tar -x{'z' if zipped else ''}f - -C {part} "
            f"&& rm -rf {target} && mv {part} {target}"
        )
        with tempfile.TemporaryFile() as tar:
            write(tar)
            tar.seek(0)
            self._ssh.run(script, tar)

    def _send_tools(self) -> None:
        if self._has_tools:
            return
        place = shlex.quote(f"{self._tools}/on_box/__main__.py")
        if self._ssh.run(f"test -f {place} || echo missing").strip() == "missing":
            self.unpack(_tar_tools, self._tools.removeprefix(f"{self.root}/"))
        self._has_tools = True


def _tar_tools(stream: IO[bytes]) -> None:
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for path in sorted(_ON_BOX.glob("*.py")):
            tar.add(path, f"on_box/{path.name}", recursive=False)
