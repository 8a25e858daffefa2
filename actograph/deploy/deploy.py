"""One deployment: from the look at the box to the smoke test through the tunnel."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from actograph.client import Client
from actograph.contract.errors import Conflict
from actograph.deploy import payload
from actograph.deploy.ssh import BoxFailed, Ssh
from actograph.deploy.tunnel import Deployment, Records
from actograph.smoke import Smoke, SmokeStep

#: torch with its CUDA libraries and without, and room for the first sessions
_GPU_BYTES, _CPU_BYTES = 12 << 30, 4 << 30


class Mode(StrEnum):
    """Treatment of a version and of packages that are on the box."""

    #: use those with the same fingerprint
    REUSE = "reuse"
    #: send and install them anew
    FRESH = "fresh"
    #: use them, and install nothing that is missing
    FROZEN = "frozen"


@dataclass(kw_only=True)
class Deploy:
    """A deployment of this checkout. Options that are None are as in the current release.

    Args:
        report: takes one line for each step, with its seconds.
        log: takes lines of pip and of the service's log.
        local_port: port of the tunnel; None picks one.
        python: Python on the box whose environment is used as it stands; None makes one.
        environment: variables of the service and of pip; an empty value removes one.
        seconds: time until the service must be ready.
        backup: copy the index before a migration, for a rollback.
        api_key: for the smoke test.
    """

    records: Records
    deployment: Deployment
    report: Callable[[str], None]
    log: Callable[[str], None]
    mode: Mode = Mode.REUSE
    model: str | None = None
    port: int | None = None
    local_port: int | None = None
    options: list[str] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    python: str | None = None
    seconds: float = 1800.0
    smoke: bool = True
    backup: bool = True
    api_key: str = ""

    def run(self) -> Deployment:
        """Deploy. Returns the deployment, whose tunnel is open.

        Raises:
            BoxFailed: the box does not fit, or the release did not start; a former one serves again.
            Conflict: the mode is `frozen`, and something is missing on the box.
            SmokeFailed: the smoke test failed; the new release runs.
        """
        contents = payload.of_checkout()
        with self.deployment.connected(self.records.home) as ssh:
            request = self._request(contents)
            with self._step("box") as say:
                found = ssh.call("check", request, self.log)
                self.records.save(self.deployment)
                say(_machine(found))
            request |= {name: found[name] for name in ("python", "lock", "gpus")}
            # an environment of the user's is not one of the deployment's
            request["env"] = "" if self.python else None if self.mode is Mode.FRESH else found["env"]
            request["received"] = self.mode is Mode.FRESH or not found["is_intact"]
            self._check(request, found)
            with self._step("version") as say:
                say(self._version(ssh, contents, request, found))
            with self._step("packages") as say:
                say(self._packages(ssh, request, found))
            with self._step("start") as say:
                started = ssh.call("start", request, self.log)
                verb = "serves" if started["started"] else "runs already; nothing was restarted"
                say(f"release {started['number']} {verb}")
            with self._step("tunnel") as say:
                known = replace(self.deployment, port=started["port"])
                ready = known.with_tunnel(ssh, self.local_port)
                self.records.save(ready)
                say(f"{ready.url} leads to port {ready.port} of the box's loopback")
        if self.smoke:
            with self._step("smoke") as say, Client(ready.url, self.api_key) as client:
                Smoke(client, self._tell_smoke).run()
                say("passed")
        return ready

    @contextmanager
    def _step(self, name: str) -> Iterator[Callable[[str], None]]:
        """Report a step and its time once it has ended. Yields a function that takes its result."""
        began, results = time.monotonic(), [""]
        yield results.append
        self.report(f"{name:<8} {results[-1]} ({time.monotonic() - began:.1f} s)")

    def _tell_smoke(self, step: SmokeStep) -> None:
        self.log(f"{step.outcome:<6} {step.step:<10} {step.detail}")

    def _request(self, contents: payload.Payload) -> dict[str, Any]:
        """Return the request of all commands on the box."""
        return {
            "folder": self.deployment.folder, "version": contents.version, "lock": contents.lock,
            "requirements": contents.requirements, "constraints": contents.constraints, "model": self.model,
            "port": self.port, "options": self.options, "environment": self.environment,
            "python": self.python, "seconds": self.seconds,
            "backup": self.backup,
        }  # fmt: skip

    def _check(self, request: dict[str, Any], found: dict[str, Any]) -> None:
        """Raise an error if something may not be installed, or the disk is too small for it."""
        missing = [f"version {request['version']}"] if request["received"] else []
        missing += [f"packages of lock {request['lock']}"] if request["env"] is None else []
        if missing and self.mode is Mode.FROZEN:
            raise Conflict(f"--frozen installs nothing, and the box lacks {' and '.join(missing)}")
        needed = _GPU_BYTES if found["gpus"] else _CPU_BYTES
        if request["env"] is None and found["free"] < needed:
            free = found["free"] / 2**30
            raise BoxFailed(f"the box has {free:.1f} GiB of free disk; packages need {needed >> 30} GiB")

    def _version(
        self, ssh: Ssh, contents: payload.Payload, request: dict[str, Any], found: dict[str, Any]
    ) -> str:
        if not request["received"]:
            return f"{contents.version} is on the box, verified: not sent again"
        ssh.push(contents.files, f"{found['root']}/versions/received")
        reason = ", as files of it were changed on the box" if found["has_version"] else ""
        reason = ", as --fresh says" if self.mode is Mode.FRESH else reason
        return f"{contents.version}: sent {len(contents.files)} files{reason}"

    def _packages(self, ssh: Ssh, request: dict[str, Any], found: dict[str, Any]) -> str:
        """Install and verify the packages, and complete the request. Returns the result in words."""
        env, release = request["env"], found["release"]
        if env:
            request["python"] = f"{found['root']}/envs/{env}/bin/python"
        is_same = release and all(release[name] == request[name] for name in ("version", "env", "python"))
        if is_same and found["pid"] and not request["received"]:
            return "the running release uses them: not installed or imported again"
        request |= ssh.call("install", request, self.log)
        if self.python:
            return f"those of {request['python']} as they are: not installed, imported"
        if env is None:
            return f"installed in {request['env']}, imported"
        return f"lock {request['lock']} is on the box: not installed again, imported"


def _machine(found: dict[str, Any]) -> str:
    """Describe the machine in one line."""
    gpus = "; ".join(found["gpus"]) or "no NVIDIA GPU"
    if found["gpu_processes"]:
        gpus += f"; others use it: {', '.join(found['gpu_processes'])}"
    memory, free = found["memory"] / 2**30, found["free"] / 2**30
    return f"{gpus}; {memory:.0f} GiB memory, {free:.0f} GiB free disk, Python {found['python_version']}"
