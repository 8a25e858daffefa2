"""`python -m on_box COMMAND FOLDER`: a JSON request on stdin, JSON lines on stdout.

Lines are `{"note": ...}`, `{"log": ...}`, and at last `{"result": ...}` or `{"error": ...}`.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import install, ports, service
from .layout import BoxError, Layout

Request = dict[str, Any]
Answer = dict[str, Any]
_TAIL_LINES = 25


def _say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _note(text: str) -> None:
    _say(note=text)


def plan(layout: Layout, request: Request) -> Answer:
    """Compare the requested version and environment with those of the box."""
    current = layout.current()
    return {
        "code": install.code_state(layout, request["code"]),
        "env": install.newest_env(layout, request["env"]),
        "current": current,
        "secrets": _secrets(layout, current),
        "is_running": service.keeper_pid(layout) is not None,
        "models": sorted(path.name for path in (layout.root / "models").glob("*")),
        "wheels": sorted(path.name for path in (layout.root / "wheels").glob("*")),
    }


def _secrets(layout: Layout, release: dict[str, Any] | None) -> str:
    """Digest of a release's environment file."""
    import hashlib

    path = layout.secrets_file(release["number"]) if release else None
    return hashlib.sha256(path.read_bytes() if path and path.exists() else b"").hexdigest()


def put(layout: Layout, request: Request) -> Answer:
    """Put uploaded versions in their place, make the environment, import the version."""
    if request["place"]:
        install.place_code(layout, request["code"])
    env = install.make_env(layout, request, _note) if request["make_env"] else request["env"]
    install.preflight(layout, request["code"], env, request["has_gpu"])
    return {"env": env}


def switch(layout: Layout, request: Request) -> Answer:
    """Stop the running release and start another. The former one is started again if that fails."""
    state = layout.state()
    former = state["current"]
    number = request.get("number") or layout.add_release(request["release"], request["secrets"])
    return _change(layout, number, former, request["seconds"])


def _change(layout: Layout, number: int, former: int | None, seconds: float) -> Answer:
    release = layout.release(number)
    if release is None:
        raise BoxError(f"release {number} is not on the box any more")
    was_running = service.stop(layout)
    try:
        _begin(layout, release, seconds)
    except BoxError as error:
        _tell_failure(layout)
        service.stop(layout)
        if former is None or former == number or not was_running:
            raise
        _note(f"release {number} failed: {error}; starting release {former} again")
        old = layout.release(former)
        assert old is not None
        _begin(layout, old, seconds)
        raise BoxError(f"release {number} failed: {error}; release {former} serves again") from None
    previous = former if former != number else layout.state()["previous"]
    layout.save_state(current=number, previous=previous)
    try:
        install.remove_unused(layout)
    except OSError as error:
        _note(f"old releases could not be removed: {error}")
    return {"number": number, "previous": previous, "manager": manager(layout)}


def _begin(layout: Layout, release: dict[str, Any], seconds: float) -> None:
    """Start a release and wait until it is ready. Its log is shown meanwhile."""
    if (ended := ports.free(layout, release["port"])) is not None:
        _note(ended)
    offset = service.start(layout, release)
    _note(f"release {release['number']} starts under {manager(layout)}")
    for line in service.until_ready(layout, offset, seconds):
        _say(log=line)


def _tell_failure(layout: Layout) -> None:
    """Show the end of every log that was written in the last minutes."""
    for path in sorted((layout.home / "logs").glob("*.log")):
        if path != layout.log and time.time() - path.stat().st_mtime < 300:
            lines = service.tail(path, _TAIL_LINES)
            for line in ([f"== {path.name}"] if lines else []) + lines:
                _say(log=line)


def manager(layout: Layout) -> str:
    return "systemd --user" if layout.state()["systemd"] else "its keeper"


def rollback(layout: Layout, request: Request) -> Answer:
    """Change to the release before the current one."""
    state = layout.state()
    if state["previous"] is None:
        raise BoxError("there is no former release to roll back to")
    return _change(layout, state["previous"], state["current"], request["seconds"])


def restart(layout: Layout, request: Request) -> Answer:
    """Start the current release, if it does not run."""
    number = layout.state()["current"]
    if service.keeper_pid(layout) is not None:
        return {"number": number, "manager": manager(layout)}
    return _change(layout, number, number, request["seconds"])


def status(layout: Layout, _: Request) -> Answer:
    """The current release, its process and the disk."""
    disk = shutil.disk_usage(layout.root)
    state = layout.state()
    return {
        "release": layout.current(),
        "previous": state["previous"],
        "pid": service.keeper_pid(layout),
        "manager": manager(layout),
        "free_bytes": disk.free,
    }


def stop(layout: Layout, _: Request) -> Answer:
    """Stop the service."""
    return {"stopped": service.stop(layout)}


def logs(layout: Layout, request: Request) -> Answer:
    """The end of a log; with `follow` all further lines."""
    name = request["name"]
    path = layout.home / "logs" / f"{name}.log"
    known = sorted(found.stem for found in path.parent.glob("*.log"))
    if name not in known:
        raise BoxError(f"no log {name!r}; there are {', '.join(known) or 'none'}")
    for line in service.tail(path, request["lines"]):
        _say(log=line)
    offset = path.stat().st_size
    while request["follow"]:
        lines, offset = service.read_log(path, offset)
        for line in lines:
            _say(log=line)
        time.sleep(0.3)
        if os.getppid() == 1:  # the connection is gone
            break
    return {}


def destroy(layout: Layout, request: Request) -> Answer:
    """Stop the service and remove the folder, without the entries to keep."""
    keep = [Path(name) for name in request["keep"]]
    for path in keep:
        if path.is_absolute() or ".." in path.parts or not (layout.root / path).exists():
            raise BoxError(f"--keep {path}: no such file or folder in {layout.root}")
    service.stop(layout)
    service.remove_unit(layout)
    _remove(layout.root, [layout.root / path for path in keep])
    return {"kept": [str(layout.root / path) for path in keep]}


def _remove(folder: Path, keep: list[Path]) -> None:
    """Remove a folder, without files or folders to keep and those around them."""
    for path in folder.iterdir():
        if path in keep:
            continue
        if any(path in one.parents for one in keep):
            _remove(path, keep)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    if not keep:
        folder.rmdir()


COMMANDS: dict[str, Callable[[Layout, Request], Answer]] = {
    function.__name__: function
    for function in (plan, put, switch, rollback, restart, status, stop, logs, destroy)
}


def main(arguments: list[str]) -> int:
    """Run a command. Exit status 0 also for errors that were reported."""
    layout = Layout(Path(arguments[1]))
    try:
        _say(result=COMMANDS[arguments[0]](layout, json.load(sys.stdin)))
    except (BoxError, OSError) as error:
        _say(error=" ".join(str(error).split()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
