"""`python3 -m on_box COMMAND REQUEST_FILE`: writes JSON lines to stdout.

These are {"log": TEXT}, and at last {"result": ...} or {"error": TEXT}.
`python3 -m on_box run ROOT` becomes the service.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from . import index, service
from .layout import OURS, Box, BoxError, answer, files_below, fingerprint, last_line, log, run

#: relative to the user's home
_PLACES = (".local/bin", "miniconda3/bin", "miniforge3/bin", "/opt/conda/bin")
_PYTHONS = ("python3.13", "python3.12", "python3.11", "python3")
#: everything that a version imports at its start
_IMPORTS = "import actograph.cli.main, api.app, storage.migrate, worker.drain.drain, torch, nnsight\n"
_GPU_SEEN = "assert torch.cuda.is_available(), f'torch {torch.__version__} does not see the GPU'"


def check(box: Box, request: dict[str, Any]) -> dict[str, Any]:
    """Look at the machine, and compare the deployment on it with the requested version and lock."""
    if platform.system() != "Linux":
        raise BoxError(f"the box runs {platform.system()}; Linux is needed")
    existing = box.root
    while not existing.exists():
        existing = existing.parent
    others = sorted({path.name for path in box.root.glob("*")} - OURS)
    if others:
        raise BoxError(f"{box.root} has other files ({others[0]}); choose another --folder")
    python, python_version = find_python(request["python"])
    source = box.versions / request["version"]
    lock = f"{request['lock']}-{python_version}"
    state = status(box, request)
    made = [path.parent.name for path in box.envs.glob(f"{lock}-*/complete")]
    return {
        "root": str(box.root), "python": python, "python_version": python_version, "gpus": gpus(),
        "gpu_processes": gpu_processes(state["pid"]),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "free": shutil.disk_usage(str(existing)).free, "lock": lock, "env": max(made, default=None),
        "has_version": source.exists(),
        "is_intact": source.exists() and fingerprint(files_below(source)) == request["version"],
        **state,
    }  # fmt: skip


def find_python(named: str | None) -> tuple[str, str]:
    """Return path and version (`3.12`) of the named Python, or of one that can make an environment."""
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    places = os.pathsep.join(
        [os.environ.get("PATH", os.defpath), *(str(Path.home() / place) for place in _PLACES)]
    )
    seen = []
    for name in [str(Path(named).expanduser())] if named else _PYTHONS:
        path = shutil.which(name, path=places)
        if path is not None:
            done = run([path, "-c", program if named else f"import venv, ensurepip; {program}"])
            version = done.stdout.strip() if done.returncode == 0 else "without venv"
            if version in ("3.11", "3.12", "3.13"):
                return path, version
            seen.append(f"{path} ({version})")
    cure = (
        "install python3-venv or conda, or run `uv python install 3.12`; or name an environment by --python"
    )
    found = ", ".join(seen) or "none"
    raise BoxError(f"Python 3.11 to 3.13 is needed; found: {found}" + ("" if named else f"; {cure}"))


def gpus() -> list[str]:
    """Return name, used and whole memory, and driver of each NVIDIA GPU."""
    lines = _nvidia_smi("--query-gpu=name,memory.used,memory.total,driver_version")
    found = [[part.strip() for part in line.split(",")] for line in lines]
    return [f"{name}, {used} of {total} used, {driver}" for name, used, total, driver in found]


def gpu_processes(own: int | None) -> list[str]:
    """Return name, pid and memory of each process on a GPU that the service `own` did not start."""
    found = []
    for line in _nvidia_smi("--query-compute-apps=pid,used_memory,process_name"):
        pid, used, name = (part.strip() for part in line.split(",", 2))
        if own is None or own not in _ancestors(pid):
            found.append(f"{name} (pid {pid}, {used})")
    return found


def _ancestors(pid: str) -> list[int]:
    """Pids of a process and of those that started it; none if it is of another container."""
    found: list[int] = []
    while pid.isdecimal() and pid != "0":
        found.append(int(pid))
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            break
        pid = next((line.split()[1] for line in lines if line.startswith("PPid:")), "0")
    return found


def _nvidia_smi(query: str) -> list[str]:
    """Lines of a query; none without a driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    done = run(["nvidia-smi", query, "--format=csv,noheader"])
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def install(box: Box, request: dict[str, Any]) -> dict[str, Any]:
    """Put a received version in its place, make an environment, and import the one in the other."""
    source = box.versions / request["version"]
    if request["received"]:
        part = box.versions / "received"
        if fingerprint(files_below(part)) != request["version"]:
            raise BoxError("the version arrived incomplete; deploy again")
        shutil.rmtree(str(source), ignore_errors=True)
        part.replace(source)
    release = requested(box, request)
    env, python = request["env"], request["python"]
    if env is None:
        env = make_env(box, request, service.environment(box, release))
    if env:
        python = str(box.envs / env / "bin" / "python")
    variables = dict(service.environment(box, release), PYTHONPATH=str(source), PYTHONSAFEPATH="1")
    wants_gpu = request["gpus"] and not any("cpu" in option for option in release["options"])
    done = run([python, "-c", _IMPORTS + (_GPU_SEEN if wants_gpu else "")], variables)
    if done.returncode != 0:
        cure = "; --fresh makes the packages anew" if env else ""
        raise BoxError(f"the new version cannot run: {last_line(done.stderr)}. Nothing was stopped{cure}")
    return {"env": env, "python": python}


def make_env(box: Box, request: dict[str, Any], variables: dict[str, str]) -> str:
    """Make a virtual environment and return its name. A former one stays: the service may run in it."""
    env = box.envs / f"{request['lock']}-{time.time_ns()}"
    env.mkdir(parents=True)
    for name in ("requirements", "constraints"):
        (env / f"{name}.txt").write_text("\n".join(request[name]) + "\n")
    pip = [str(env / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    pip += ["--progress-bar=off", "-r", str(env / "requirements.txt"), "-c", str(env / "constraints.txt")]
    for command in ([request["python"], "-m", "venv", str(env)], pip):
        with subprocess.Popen(
            command, env=variables, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            text = ""
            for line in process.stdout or ():
                text = line.strip() or text
                if line.startswith(("Collecting", "Installing")):
                    log(text.partition(" (from")[0][:100])
        if process.returncode != 0:
            raise BoxError(f"{' '.join(command[1:4])}: {text}")
    (env / "complete").touch()
    return env.name


def requested(box: Box, request: dict[str, Any]) -> dict[str, Any]:
    """Return the requested release. What was not given is as in the current release."""
    former = box.state()["current"] or {"model": None, "port": 8420, "options": [], "environment": {}}
    given = {name: request[name] for name in ("model", "port", "options") if request[name] is not None}
    variables = dict(former["environment"], **request["environment"])
    variables = {name: value for name, value in variables.items() if value}
    places = {name: request[name] for name in ("version", "env", "python")}
    return dict(former, **given, **places, environment=variables)


def start(box: Box, request: dict[str, Any]) -> dict[str, Any]:
    """Start the requested release, unless it runs."""
    current, release = box.state()["current"], requested(box, request)
    if not release["model"]:
        raise BoxError("no model: set --model to a hub id, or to a folder on the box")
    is_same = release == current
    if not is_same:
        release.pop("migration", None)
        numbers = [known["number"] for known in box.state().values() if known]
        release["number"] = max(numbers, default=0) + 1
    elif not request["received"] and service.running(box):
        return dict(public(release), started=False)
    return change(box, release, request["seconds"], backup=request["backup"])


def rollback(box: Box, request: dict[str, Any]) -> dict[str, Any]:
    """Change to the release before the current one."""
    previous = box.state()["previous"]
    if previous is None:
        raise BoxError("there is no former release")
    return change(box, previous, request["seconds"])


def change(box: Box, release: dict[str, Any], seconds: float, *, backup: bool = True) -> dict[str, Any]:
    """Stop the running release and start another; if that fails, start the former one again.

    The index is backed up before a migration, and put back for a release from before it.

    Args:
        backup: False migrates the index without a backup.
    """
    before = box.state()
    former = before["current"]
    is_other = former is None or former["number"] != release["number"]
    service.refuse_others(box, release["port"])
    copy = index.copy_for(former, release)
    was_running = service.stop(box)
    undo: index.Undo = None
    said: list[str] = []
    try:
        if copy:
            undo = index.put_back(box, former, copy, said)
        elif former is None or former["number"] <= release["number"]:
            undo = index.before_migration(box, release, former, backup)
        box.save({"current": release, "previous": former if is_other else before["previous"]})
        service.start(box, release, seconds)
    except BoxError as error:
        service.stop(box)
        box.save(before)
        reason = str(error)
        if undo:
            newer, file = undo
            try:
                index.put_back(box, newer, file, said)
            except BoxError as failure:
                raise BoxError(f"{reason}; the index was not put back from {file}: {failure}") from None
            reason = "; ".join([reason, *said[-1:]])
        if not (was_running and is_other):
            raise BoxError(reason) from None
        log(f"{reason}; starting release {former['number']} again")
        service.start(box, former, seconds)
        raise BoxError(f"{reason}; release {former['number']} serves again") from None
    kept = [known for known in box.state().values() if known]
    for folder, field in ((box.versions, "version"), (box.envs, "env")):
        for path in folder.glob("*"):
            if path.name not in [known[field] for known in kept]:
                shutil.rmtree(str(path), ignore_errors=True)
    return dict(public(release), started=True, index=said[-1] if said else None)


def public(release: dict[str, Any]) -> dict[str, Any]:
    """Return a release without the values of its variables, which may be secrets."""
    return dict(release, environment=sorted(release["environment"]))


def status(box: Box, _: dict[str, Any]) -> dict[str, Any]:
    """Return the current release, the number of the previous one, and the pid of the service."""
    state = box.state()
    current, previous = state["current"], state["previous"]
    return {
        "release": current and public(current),
        "previous": previous and previous["number"],
        "pid": service.running(box),
    }


def stop(box: Box, _: dict[str, Any]) -> dict[str, Any]:
    """Stop the service."""
    return {"stopped": service.stop(box)}


def destroy(box: Box, request: dict[str, Any]) -> dict[str, Any]:
    """Stop the service and remove the deployment, its data only if requested."""
    service.stop(box)
    for name in OURS - (set() if request["delete_data"] else {"home"}):
        path = box.root / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(str(path))
        elif path.exists() or path.is_symlink():
            path.unlink()
    if not box.home.exists():
        box.root.rmdir()
    return {"kept": str(box.home) if box.home.exists() else None}


READERS = {"check": check, "status": status}
#: one at a time
WRITERS = {"install": install, "start": start, "rollback": rollback, "stop": stop, "destroy": destroy}


def main(command: str, request: dict[str, Any]) -> None:
    """Run a command on the deployment in the request's `folder`."""
    box = Box(request["folder"])
    try:
        if command != "check" and not box.root.exists():
            raise BoxError(f"nothing is deployed in {box.root}")
        if command in READERS:
            answer(result=READERS[command](box, request))
            return
        with (box.root / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            answer(result=WRITERS[command](box, request))
    except BlockingIOError:
        answer(error="another `actograph deploy` is at work on the box; wait for its end")
    except (BoxError, OSError) as error:
        answer(error=" ".join(str(error).split()))


if __name__ == "__main__":
    if sys.argv[1] == "run":
        service.become_service(Box(sys.argv[2]))
    else:
        main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()))
