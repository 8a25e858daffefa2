"""An S3 server of our own: OpenStack Swift, whose S3 API checks signatures and checksums.

It lives in a virtual environment of its own, `.venv-swift` beside `.venv` (ignored by git), which is
built on the first use and used by all later ones.
"""

import getpass
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from actograph.stack.ports import free_port
from tests.support.isolated_python import python_with
from tests.support.servers import Unavailable, kept
from tests.support.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server

SWIFT = "swift==2.38.3"
BACKENDS = ("account", "container", "object")
START_SECONDS = 60.0

_COMMON = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {home}
devices = {home}/devices
mount_check = false
disable_fallocate = true
"""
_BACKEND = """
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""
_FILTERS = ("catch_errors", "gatekeeper", "healthcheck", "listing_formats", "bulk", "s3api", "tempauth",
            "copy", "slo", "dlo", "versioned_writes", "symlink")  # fmt: skip
_FILTER_OPTIONS = {
    "s3api": "location = us-east-1\ns3_acl = false\ncheck_bucket_owner = false\n",
    "tempauth": f"user_{ACCESS_KEY.replace(':', '_')} = {SECRET_KEY} .admin\n",
    "versioned_writes": "allow_object_versioning = true\n",
}


def programs() -> Path:
    """The folder with Swift's programs, installed where they are not yet. Raises Unavailable."""
    return python_with("swift", SWIFT, (SWIFT,)).parent


class SwiftServer(S3Server):
    """A one-disk cluster of four processes; `start` after `stop` finds what was stored."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="actograph-swift-"))
        self._programs = Path()
        self._processes: list[subprocess.Popen[bytes]] = []

    def create(self) -> None:
        """Install what is missing, configure, start. Raises Unavailable."""
        try:
            self._programs = programs()
            self._configure()
            self.start()
        except Unavailable:
            self.remove()
            raise

    def start(self) -> None:
        """Start and wait until it answers. Raises Unavailable."""
        for kind in (*BACKENDS, "proxy"):
            with (self.folder / f"{kind}.log").open("ab") as log:
                program, config = self._programs / f"swift-{kind}-server", self.folder / f"{kind}.conf"
                command = kept([str(program), str(config), "-v"], signal.SIGTERM)
                self._processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT))
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/healthcheck", timeout=2):
                    return
            except (urllib.error.URLError, OSError) as error:
                if time.monotonic() > deadline or any(p.poll() is not None for p in self._processes):
                    logs = "\n".join(p.read_text()[-500:] for p in self.folder.glob("*.log"))
                    raise Unavailable(f"the S3 server did not start: {error}; {logs}") from error
                time.sleep(0.1)

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()
        self._processes.clear()

    def remove(self) -> None:
        """End it and remove its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _configure(self) -> None:
        """Write the configuration and the rings."""
        (self.folder / "devices/d1").mkdir(parents=True)
        (self.folder / "swift.conf").write_text(
            "[swift-hash]\nswift_hash_path_suffix = tests\nswift_hash_path_prefix = tests\n"
            "[storage-policy:0]\nname = default\ndefault = yes\n"
        )
        user = getpass.getuser()
        for kind in BACKENDS:
            port = free_port("127.0.0.1")
            text = _COMMON.format(port=port, user=user, home=self.folder) + _BACKEND.format(kind=kind)
            (self.folder / f"{kind}.conf").write_text(text)
            self._build_ring(kind, port)
        self.port = free_port("127.0.0.1")
        text = _COMMON.format(port=self.port, user=user, home=self.folder)
        text += f"[pipeline:main]\npipeline = {' '.join(_FILTERS)} proxy-server\n"
        text += "[app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = true\n"
        # its default of half a second is too little where all of a box's cores are busy
        text += "conn_timeout = 10\n"
        for name in _FILTERS:
            text += f"[filter:{name}]\nuse = egg:swift#{name}\n{_FILTER_OPTIONS.get(name, '')}"
        (self.folder / "proxy.conf").write_text(text)

    def _build_ring(self, kind: str, port: int) -> None:
        builder = str(self.folder / f"{kind}.builder")
        for step in (["create", "4", "1", "1"], ["add", f"r1z1-127.0.0.1:{port}/d1", "1"], ["rebalance"]):
            command = [str(self._programs / "swift-ring-builder"), builder, *step]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode > 1:  # 1 is a warning
                raise Unavailable(f"no S3 server: the {kind} ring could not be built: {done.stdout}")
