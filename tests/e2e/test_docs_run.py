"""Blocks of the docs under `<!-- run -->` are run as they stand, against one service with the demo's model.

Only what a reader fills in is filled in: ids, `JOB`, `SESSION`, the address. Commands without shell syntax
run in this process, everything else in bash.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from actograph.cli.main import main
from actograph.client import Client
from actograph.contract.resources import JobStatus
from actograph.demo import PROBLEMS

if TYPE_CHECKING:
    from tests.e2e.conftest import Up

pytestmark = pytest.mark.e2e

REPO = Path(__file__).resolve().parents[2]
PAGES = [REPO / "README.md", *sorted((REPO / "docs").rglob("*.md"))]
MARKED = re.compile(r"^<!-- run -->\n```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PROGRAM = f"""#!{sys.executable}
import sys
from actograph.cli.main import main
sys.exit(main())
"""
STAND_INS = str(Path(__file__).with_name("stand_ins.py"))
STAND_IN = f"""#!{sys.executable}
import os, sys
os.execv(sys.executable, [sys.executable, {STAND_INS!r}, "NAME", *sys.argv[1:]])
"""


@dataclass(frozen=True)
class Reader:
    """Somebody with a service, a job of two conditions, and files of the names that the docs use."""

    folder: Path
    url: str
    job: str
    session: str

    def filled_in(self, text: str) -> str:
        text = re.sub(r"\bses_37605916fa3f\w*", self.session, text)
        text = re.sub(r"\b(JOB|job_\.\.\.)(?!\w|=)", self.job, re.sub(r"\$JOB\b", "${JOB_ID}", text))
        text = re.sub(r"\bSESSION\b", self.session, text)
        return text.replace("http://127.0.0.1:8420", self.url).replace("my-model", "demo")

    @property
    def environment(self) -> dict[str, str]:
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        own = {"ACTOGRAPH_URL": self.url, "S": self.session, "JOB_ID": self.job, "PATH": path}
        return {**os.environ, **own}


@pytest.fixture(scope="module")
def reader(module_up: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("reader")
    programs = {"actograph": PROGRAM}
    for name in ("curl", "tar"):
        if shutil.which(name) is None:
            programs[name] = STAND_IN.replace("NAME", name)
    (folder / "bin").mkdir()
    for name, text in programs.items():
        (folder / "bin" / name).write_text(text, encoding="utf-8")
        (folder / "bin" / name).chmod(0o755)
    rows = PROBLEMS.read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "data").mkdir()
    (folder / "actograph" / "demo").mkdir(parents=True)
    for name in ("problems.jsonl", "data/problems.jsonl", "actograph/demo/problems.jsonl"):
        (folder / name).write_text("".join(rows[:24]), encoding="utf-8")
    (folder / "texts.jsonl").write_text('{"body": "The cat sat on the mat."}\n', encoding="utf-8")
    for name in ("additions.jsonl", "other.jsonl"):
        (folder / name).write_text(
            '{"story": "12 coins and 30 coins?", "a": 12, "b": 30}\n', encoding="utf-8"
        )
    (folder / "job.yaml").write_text(
        '{"kind": "capture", "model": "demo", "inputs": [{"prompt": "1+2="}], "sampling": {"max_tokens": 8}}',
        encoding="utf-8",
    )
    service: Up = module_up("--data-root", str(folder / "data"))
    service.await_ready()
    with Client(service.url, "") as client:
        job = client.submit(
            {
                "kind": "evaluation",
                "model": "demo",
                "task": "gsm8k",
                "dataset": {"path": "problems.jsonl"},
                "limit": 24,
                "sampling": {"max_tokens": 96, "temperature": 1.8},  # wrong half of the time
                "conditions": [{"name": "baseline"}, {"name": "ep02", "suffix": "This matters."}],
                "capture": {"points": ["attn_in", "mlp_in", "resid_post"], "layers": "all"},
                "tags": ["night"],
            }
        ).wait(timeout=120)
        assert job.status is JobStatus.COMPLETED, job.error
        session = next(job.sessions())
        session.download(folder / "pulled")
    yield Reader(folder, service.url, job.id, session.id)


def commands_of(text: str) -> Iterator[str]:
    """One command after the other, those over several lines in one piece."""
    command = ""
    for line in text.replace("\\\n", " ").splitlines():
        command += line
        try:
            words = shlex.split(command, comments=True)
        except ValueError:  # within quotes
            command += "\n"
            continue
        if words:
            yield command
        command = ""


def run_shell(text: str, reader: Reader, capsys: pytest.CaptureFixture[str]) -> None:
    for line in commands_of(text):
        if line.startswith("actograph ") and not re.search(r"[|&;<>$`]", line):
            code = main(shlex.split(line, comments=True)[1:])
            assert code == 0, f"{line}\n{capsys.readouterr().err}"
            continue
        ended = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", line.replace("curl -s ", "curl -sS --fail-with-body ")],
            cwd=reader.folder,
            env=reader.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert ended.returncode == 0, f"{line}\n{ended.stdout}\n{ended.stderr}"


def run_python(text: str, names: dict[str, Any]) -> None:
    exec(compile(text, "the docs", "exec"), names)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(str(page.relative_to(REPO)), marks=pytest.mark.soak)
        for page in PAGES
        if MARKED.search(page.read_text("utf-8"))
    ],
)
def test_what_the_page_shows_runs(
    name: str, reader: Reader, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(reader.folder)
    monkeypatch.setenv("ACTOGRAPH_URL", reader.url)
    text = (REPO / name).read_text(encoding="utf-8")
    for file, content in re.findall(r"^```yaml\n# (\w+\.yaml)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        (reader.folder / file).write_text(content, encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    for language, block in MARKED.findall(text):
        if language == "sh":
            run_shell(reader.filled_in(block), reader, capsys)
        else:
            run_python(reader.filled_in(block), names)
