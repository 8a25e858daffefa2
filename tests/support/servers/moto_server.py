"""An S3 server of one process that keeps everything in memory: moto's."""

import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

from actograph.stack.ports import free_port
from tests.support.servers import Unavailable, kept
from tests.support.servers.s3 import S3Server

START_SECONDS = 60.0


class MotoServer(S3Server):
    """Objects are lost when it stops."""

    def __init__(self) -> None:
        super().__init__()
        self._process: subprocess.Popen[bytes] | None = None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `remove`)

    def create(self) -> None:
        self.port = free_port("127.0.0.1")
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._process = subprocess.Popen(kept(command, signal.SIGTERM), stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                with urllib.request.urlopen(f"{self.url}/moto-api/", timeout=2):
                    return
            except (urllib.error.URLError, OSError) as error:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    self._log.seek(0)
                    said = self._log.read()[-500:].decode(errors="replace")
                    raise Unavailable(f"the S3 server did not start: {error}; {said}") from error
                time.sleep(0.05)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def remove(self) -> None:
        self.stop()
        self._log.close()
