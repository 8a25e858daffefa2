"""The supervisor with toy programs that crash, exit, hang, ignore SIGTERM and leave children behind."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from actograph.contract.errors import ServiceUnavailable
from actograph.stack import processes
from actograph.stack.processes import Child, Supervisor
from tests.support.processes import words_of

SLEEP = "import time; time.sleep(120)"
#: says when its handlers are in place
READY = "open(sys.argv[1], 'a').write('.')"
IGNORES_SIGTERM = (
    f"import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); {READY}; time.sleep(120)"
)
#: dies with status 3 so many times, then stays
CRASHES = f"""
import sys, time
path, times = sys.argv[1], int(sys.argv[2])
{READY}
print('start', len(open(path).read()), flush=True)
if len(open(path).read()) <= times:
    sys.exit(3)
time.sleep(120)
"""


class Watcher:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []
        self.supervisor = Supervisor(self.said.append)

    def start(self, code: str, *arguments: object) -> Child:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        log = self.folder / "logs" / "toy.log"
        return self.supervisor.start(Child("toy", command, os.environ, log))

    def until(self, condition: Callable[[], bool], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.said
            self.supervisor.check()
            time.sleep(0.01)


@pytest.fixture
def watcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watcher]:
    monkeypatch.setattr(processes, "FIRST_DELAY_SECONDS", 0.05)
    made = Watcher(tmp_path)
    yield made
    made.supervisor.kill_all()


def content(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_program_that_crashes_is_started_again(watcher: Watcher, tmp_path: Path) -> None:
    child = watcher.start(CRASHES, tmp_path / "starts", 2)
    watcher.until(lambda: len(content(tmp_path / "starts")) == 3)
    assert child.pid is not None
    assert [line.partition(";")[0] for line in watcher.said] == ["toy ended with exit status 3"] * 2
    assert "0.1 s" in watcher.said[1]


@pytest.mark.integration
def test_a_crash_loop_is_the_end(watcher: Watcher, tmp_path: Path) -> None:
    watcher.start(CRASHES, tmp_path / "starts", 100)
    with pytest.raises(ServiceUnavailable, match=r"could not start 5 times: start 5; its log: .*toy\.log"):
        watcher.until(lambda: False)
    assert content(tmp_path / "logs" / "toy.log").count("start") == 5


def test_a_program_that_refuses_to_start_is_not_started_again(watcher: Watcher) -> None:
    watcher.start("import sys; print('a line'); sys.exit('no such model')")
    with pytest.raises(ServiceUnavailable, match="toy could not start: no such model; its log"):
        watcher.until(lambda: False)
    assert watcher.said == ["a line"]


def test_deaths_are_counted_since_a_program_was_last_ready(watcher: Watcher, tmp_path: Path) -> None:
    child = watcher.start(CRASHES, tmp_path / "starts", 0)
    child.is_ready = lambda pid: pid == child.pid
    watcher.until(lambda: child.ready)
    for _ in range(processes.MAX_DEATHS + 1):
        child.kill()
        watcher.until(lambda: not child.ready)
        watcher.until(lambda: child.ready)
    assert "SIGKILL, perhaps out of memory" in watcher.said[-2]
    assert watcher.said[-1] == "toy is ready again"
    assert watcher.said.count("toy is ready again") == processes.MAX_DEATHS + 1, "not at the first start"


def test_a_log_that_grows_is_rotated_and_its_program_continues(
    watcher: Watcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actograph.stack.processes.LOG_BYTES", 50_000)
    lines = "for _ in range(120): print('x' * 1000)"
    child = watcher.start(f"import time\n{lines}\nprint('all', flush=True)\ntime.sleep(120)")
    first = child.pid
    log = tmp_path / "logs" / "toy.log"
    watcher.until(lambda: content(log).endswith("all\n"))
    assert 40_000 < len(content(log.with_name("toy.log.1"))) <= 50_000
    assert child.pid == first
    assert watcher.said == []


def test_stop_is_sigterm(watcher: Watcher, tmp_path: Path) -> None:
    code = f"""
import signal, sys, time
def end(*_):
    print("ended well", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
{READY}
time.sleep(120)
"""
    child = watcher.start(code, tmp_path / "starts")
    watcher.until(lambda: content(tmp_path / "starts") == ".")
    watcher.supervisor.stop([child])
    assert child.pid is None
    assert list(child.tail) == ["ended well"]
    watcher.supervisor.check()
    assert child.pid is None
    assert watcher.said == []


def test_a_program_that_ignores_sigterm_is_killed(
    watcher: Watcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "STOP_SECONDS", 0.3)
    child = watcher.start(IGNORES_SIGTERM, tmp_path / "starts")
    watcher.until(lambda: content(tmp_path / "starts") == ".")
    pid = child.pid
    assert pid is not None
    watcher.supervisor.stop([child])
    assert gone(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_children_do_not_outlive_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, sys, time
from pathlib import Path
from actograph.stack.processes import Child, Supervisor
supervisor = Supervisor(print)
toy = Child("toy", [sys.executable, "-c", {SLEEP!r}], os.environ, Path(sys.argv[1]))
print(supervisor.start(toy).pid, flush=True)
time.sleep(120)
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    child = psutil.Process(pid)
    # the launcher has replaced itself by the program
    deadline = time.monotonic() + 120
    while "launcher.py" in " ".join(words_of(child)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    while not gone(pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
