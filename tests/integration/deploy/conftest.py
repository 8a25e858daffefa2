"""A box behind a stand-in for ssh, and a checkout with a small service."""

import json
import os
import shlex
import shutil
import signal
import sys
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from actograph.deploy import payload
from actograph.stack.ports import free_port
from tests.support.command_line import Run, runner
from tests.support.servers import fake_ssh

ON_BOX = Path(payload.__file__).with_name("on_box")
#: modules that a deployment imports, and a service that shows its variables and cannot load `broken`
FILES = {
    "actograph/__init__.py": "",
    "actograph/cli/__init__.py": "",
    "actograph/cli/main.py": "",
    "api/__init__.py": "",
    "api/app.py": "",
    "evals/__init__.py": "",
    "storage/__init__.py": "",
    "storage/migrate.py": "",
    "worker/__init__.py": "",
    "worker/drain/__init__.py": "",
    "worker/drain/drain.py": "",
    "actograph/__main__.py": """\
import http.server, json, os, sys

options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
if options["--model"] == "broken":
    print("loading", options["--model"], flush=True)
    sys.exit("error: worker-1 could not start: no such model")


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"pid": os.getpid(), "options": options, **os.environ}).encode())

    def log_message(self, *_):
        pass


server = http.server.HTTPServer((options["--host"], int(options["--port"])), Handler)
print(f"ready: http://127.0.0.1:{options['--port']}", flush=True)
server.serve_forever()
""",
    "pyproject.toml": """\
[project]
dependencies = ["torch"]
[project.optional-dependencies]
server = ["nnsight"]
service = ["actograph[server]"]
""",
    "constraints.txt": "torch==2.0\nnnsight==1.0\n",
}


class Desk:
    """The researcher's machine, and the box `me@box`."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.folder, self._run = folder, run
        self.box = folder / "box"
        self.home = self.box / "home"
        self.root = self.home / ".actograph-deploy"
        self.checkout = folder / "checkout"
        self.python = folder / "python" / "bin" / "python"
        self.site = next((folder / "python" / "lib").glob("python3*")) / "site-packages"
        self.port = free_port("127.0.0.1")
        self.ssh = shlex.join([sys.executable, "-S", fake_ssh.__file__, str(self.box)])
        self.said = ""

    def actograph(self, *words: object) -> int:
        """Run `actograph` with these words. `said` is its output, of both streams."""
        code, out, err = self._run(*words)
        self.said = err + out
        return code

    def run(self, *words: object) -> int:
        return self.actograph("deploy", *words)

    def deploy(self, *words: object, target: str = "me@box") -> int:
        options = ("--ssh", self.ssh, "--python", self.python, "--port", self.port, "--no-smoke")
        return self.run(target, *options, *words)

    def status(self) -> dict[str, Any]:
        _, out, _ = self._run("deploy", "status", "--format", "json")
        found: dict[str, Any] = json.loads(out)
        return found

    def served(self) -> dict[str, Any]:
        """The service's variables, through the tunnel."""
        with urllib.request.urlopen(str(self.status()["url"]), timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found


@pytest.fixture
def desk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    for name, text in FILES.items():
        (tmp_path / "checkout" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "checkout" / name).write_text(text)
    shutil.copytree(
        ON_BOX, tmp_path / "checkout/actograph/deploy/on_box", ignore=shutil.ignore_patterns("*.pyc")
    )
    # an environment that has all packages
    venv.create(tmp_path / "python")
    (tmp_path / "box" / "home").mkdir(parents=True)
    made = Desk(tmp_path, runner(capsys))
    for package in ("torch", "nnsight"):
        (made.site / f"{package}.py").touch()
    monkeypatch.setattr(payload, "CHECKOUT", made.checkout)
    monkeypatch.setenv("ACTOGRAPH_HOME", str(tmp_path / "desk"))
    yield made
    made.run("tunnel", "--close")
    for pid_file in made.home.glob("*/service.pid"):
        os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)
