"""Versions and environments on the box: verified, installed, removed."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .layout import KEPT_RELEASES, BoxError, Layout, write_json

Tell = Callable[[str], None]
_COMPLETE = "complete.json"
_SITES = """\
import json, sys
print(json.dumps([p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]))
"""
#: everything that a release imports when it starts
_PREFLIGHT = "import actograph.cli.main, api.app, storage.migrate, worker, torch, nnsight"
_GPU = "import torch; assert torch.cuda.is_available(), 'torch does not see the GPU'"
_PREFLIGHT_SECONDS = 600


def fingerprint_of(manifest: dict[str, str]) -> str:
    """Fingerprint of a version: of its files' names and SHA-256 digests."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def code_state(layout: Layout, fingerprint: str) -> str:
    """`ok`, `missing`, or the first file that differs from the version's manifest."""
    return _state_of(layout.code(fingerprint), fingerprint)


def _state_of(folder: Path, fingerprint: str) -> str:
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return "missing"
    if fingerprint_of(manifest) != fingerprint:
        return "manifest.json"
    for name, digest in manifest.items():
        try:
            found = hashlib.sha256((folder / "lib" / name).read_bytes()).hexdigest()
        except FileNotFoundError:
            return str(name)
        if found != digest:
            return str(name)
    return "ok"


def newest_env(layout: Layout, fingerprint: str) -> str | None:
    """The newest complete environment of a locked set; None if there is none."""
    complete = [
        env
        for env in _envs(layout, fingerprint)
        if (env / _COMPLETE).is_file() and layout.python(env.name).exists()
    ]
    return max(complete, key=lambda env: (env / _COMPLETE).stat().st_mtime_ns).name if complete else None


def _envs(layout: Layout, fingerprint: str) -> list[Path]:
    return list((layout.root / "envs").glob(f"{fingerprint}*"))


def place_code(layout: Layout, fingerprint: str) -> None:
    """Verify a version that the client has unpacked, and put it in its place."""
    folder = layout.code(fingerprint)
    part = folder.with_name(f"{fingerprint}.part")
    if (state := _state_of(part, fingerprint)) != "ok":
        raise BoxError(f"the version was not received: {state}")
    shutil.rmtree(folder, ignore_errors=True)
    part.replace(folder)


def make_env(layout: Layout, request: dict[str, Any], tell: Tell) -> str:
    """Make a virtual environment of a locked set and return its name.

    Another environment of the same set stays, as the running service may use it.
    """
    name = f"{request['env']}-{len(_envs(layout, request['env'])) + 1}"
    env = layout.env(name)
    shutil.rmtree(env, ignore_errors=True)
    env.parent.mkdir(parents=True, exist_ok=True)
    base = request["python"]
    tell(f"environment {name}: from {base}")
    _run([base, "-m", "venv", str(env)], "python -m venv")
    python = layout.python(name)
    site = next((env / "lib").glob("python3*")) / "site-packages"
    if request["on_top"]:
        shared = json.loads(_run([base, "-c", _SITES], base))
        (site / "_base.pth").write_text("".join(f"{folder}\n" for folder in shared), encoding="utf-8")
    (env / "requirements.txt").write_text("\n".join(request["requirements"]) + "\n", encoding="utf-8")
    (env / "lock.txt").write_text("\n".join(request["lock"]) + "\n", encoding="utf-8")
    command = [
        *(str(python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"),
        *("-r", str(env / "requirements.txt"), "-c", str(env / "lock.txt")),
    ]
    if request["wheels"]:
        command += ["--find-links", str(layout.root / "wheels" / request["wheels"])]
    installed = _run([*command, *request["pip"]], "pip install")
    new = [line for line in installed.splitlines() if line.startswith("Successfully installed")]
    tell(f"environment {name}: {new[-1].lower() if new else 'all packages were there'}")
    freeze = _run([str(python), "-m", "pip", "--disable-pip-version-check", "freeze"], "pip freeze")
    write_json(env / _COMPLETE, {"packages": freeze.splitlines()})
    return name


def preflight(layout: Layout, code: str, env: str, has_gpu: bool) -> None:
    """Import a version in its environment, before the running one is stopped. Raises BoxError."""
    program = f"{_PREFLIGHT}\n{_GPU if has_gpu else ''}"
    library = str(layout.code(code) / "lib")
    try:
        _run(
            [str(layout.python(env)), "-c", program],
            "the new version cannot be imported",
            environment={"PYTHONPATH": library, "PYTHONSAFEPATH": "1", "HF_HUB_OFFLINE": "1"},
        )
    except BoxError as error:
        raise BoxError(
            f"{error}; the running service was left alone. If packages are damaged: --fresh"
        ) from None


def remove_unused(layout: Layout) -> None:
    """Remove all but the newest releases, and versions and environments without a release."""
    state = layout.state()
    numbers = sorted((int(path.stem) for path in (layout.root / "releases").glob("*.json")), reverse=True)
    kept = {*numbers[:KEPT_RELEASES], state["current"], state["previous"]}
    for number in set(numbers) - kept:
        layout.release_file(number).unlink(missing_ok=True)
        layout.secrets_file(number).unlink(missing_ok=True)
    releases = [release for number in kept if (release := layout.release(number))]
    for kind in ("code", "env"):
        folder = layout.root / {"code": "code", "env": "envs"}[kind]
        used = {release[kind] for release in releases}
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.name not in used:
                shutil.rmtree(path)


def _run(command: Sequence[str], name: str, environment: dict[str, str] | None = None) -> str:
    import os

    try:
        done = subprocess.run(
            command,
            env=os.environ | (environment or {}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PREFLIGHT_SECONDS if environment else None,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BoxError(f"{name}: {error}") from None
    if done.returncode != 0:
        lines = [line for line in (done.stderr.strip() or done.stdout.strip()).splitlines() if line.strip()]
        raise BoxError(f"{name}: {' | '.join(lines[-4:]) or f'exit status {done.returncode}'}")
    return done.stdout
