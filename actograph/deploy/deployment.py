"""One deployment: from the look at the box to the smoke test through the tunnel."""

import hashlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

from actograph.client import Client
from actograph.contract.errors import ActographError, Conflict, InvalidRequest, NotFound
from actograph.contract.models import model_names
from actograph.deploy import payload, tunnel
from actograph.deploy.boxes import Box, Boxes, Deployment
from actograph.deploy.env_file import read_env
from actograph.deploy.probe import Facts, check_space, probe
from actograph.deploy.python_install import install_python
from actograph.deploy.remote import Remote
from actograph.deploy.ssh import BoxFailed, Ssh
from actograph.smoke.smoke import Smoke, Step

Tell = Callable[[str], None]
_LOCAL_STARTS = ("./", "../")


class Mode(StrEnum):
    """Treatment of what is on the box already."""

    #: take over versions and environments with the same fingerprint
    REUSE = "reuse"
    #: install both anew
    FRESH = "fresh"
    #: install nothing; refuse if something is missing or differs
    FROZEN = "frozen"


class NotSynced(Conflict):
    """The box differs from this installation, and nothing may be installed."""

    code = "not_synced"


@dataclass(kw_only=True)
class Deploy:
    """A deployment of this installation to a box.

    Args:
        seconds: time until the service must be ready.
        note: takes remarks, one line each.
        log: takes lines of the service's log.
        api_key: key for the smoke test; None takes the first of the environment file.
    """

    boxes: Boxes
    name: str
    box: Box
    mode: Mode
    seconds: float
    note: Tell
    log: Tell
    api_key: str | None = None
    smoke: bool = True

    def run(self) -> Deployment:
        """Deploy. Returns the deployment, whose tunnel is open.

        Raises:
            BoxFailed: the box does not fit, or the service did not start; the former release serves again.
            NotSynced: the mode is `frozen`, and the box has not this version.
            SmokeFailed: the smoke test failed; the former release serves again.
        """
        with Ssh(self.box.target, self.box.ssh) as ssh:
            root, python, facts = self._look(ssh)
            remote = Remote(ssh, root, python, self.note, self.log)
            ready = Deployment(name=self.name, box=self.box, root=root, python=python)
            ready = self._with_former_tunnel(ready)
            self.boxes.save(ready)
            changed = self._bring(remote, python, facts)
            ready = tunnel.open_tunnel(
                ssh, ready, self.boxes.file.parent / "deployments" / f"{self.name}.log"
            )
            self.boxes.save(ready)
            if self.smoke:
                self._smoke(ready, remote, changed)
        return ready

    def _look(self, ssh: Ssh) -> tuple[str, str, Facts]:
        """Look at the box. Returns the folder there, its Python and the facts."""
        facts = probe(ssh, self.box.folder, self.box.python)
        root = self.box.folder if self.box.folder.startswith("/") else f"{facts.home}/{self.box.folder}"
        self.note(f"{self.box.target}: {facts.describe()}")
        check_space(facts, needs_env=False)
        python = facts.python
        if not python:
            if self.mode is Mode.FROZEN:
                raise NotSynced("--frozen: the box has no Python 3.11 to 3.13")
            python = install_python(ssh, root, facts.machine, self.note)
        return root, python, facts

    def _with_former_tunnel(self, deployment: Deployment) -> Deployment:
        """Take over the tunnel of the last deployment if it leads to the same place."""
        try:
            former = self.boxes.deployment(self.name)
        except NotFound:
            return deployment
        if former.box.target == self.box.target and former.box.port == self.box.port:
            ports = {"local_port": former.local_port, "tunnel_pid": former.tunnel_pid}
            return deployment.model_copy(update=ports)
        tunnel.close_tunnel(former)
        return deployment

    def _bring(self, remote: Remote, python: str, facts: Facts) -> bool:
        """Install what is missing and start it. Returns False if this release runs already."""
        contents = payload.of_this_installation(Path(self.box.lock) if self.box.lock else None)
        wheels = Path(self.box.wheels) if self.box.wheels else None
        if wheels is not None and not any(wheels.glob("*.whl")):
            raise InvalidRequest(f"--wheels {wheels}: no wheels in this folder")
        wheels_id = payload.digest_of_folder(wheels) if wheels else ""
        env = contents.env(python, self.box.python is not None, self.box.pip, wheels_id)
        found = remote.call("plan", code=contents.code, env=env)
        self._refuse_unsynced(contents.code, found)
        has_code = found["code"] == "ok" and self.mode is not Mode.FRESH
        has_env = found["env"] is not None and self.mode is not Mode.FRESH
        model = self._model(remote, found)
        self._tell_sync(contents, found, has_code, has_env)
        if not has_env:
            check_space(facts, needs_env=self.box.python is None)
        if not has_code:
            remote.unpack(contents.write_tar, f"code/{contents.code}.part", zipped=True)
        if not has_env and wheels is not None and wheels_id not in found["wheels"]:
            remote.unpack(partial(payload.tar_of_folder, wheels), f"wheels/{wheels_id}")
        secrets = Path(self.box.env_file).read_text(encoding="utf-8") if self.box.env_file else ""
        release = {
            "code": contents.code,
            "env": found["env"],
            "port": self.box.port,
            "arguments": ["--model", model, *shlex.split(self.box.options)],
        }
        is_same = has_code and has_env and self._is_current(release, secrets, found)
        if is_same and found["is_running"]:
            self.note(
                f"release {found['current']['number']} runs already, with this version and these settings"
            )
            return False
        if self.mode is Mode.FROZEN and not is_same:
            raise NotSynced("--frozen: the settings of the running release differ; use --reuse")
        put = remote.call(
            "put", code=contents.code, env=found["env"] if has_env else env, place=not has_code,
            make_env=not has_env, python=python, on_top=self.box.python is not None,
            requirements=contents.requirements, lock=contents.lock, pip=shlex.split(self.box.pip),
            wheels=wheels_id, has_gpu=bool(facts.gpus),
        )  # fmt: skip
        if is_same:
            remote.call("restart", seconds=self.seconds)
            return False
        remote.call("switch", release=release | {"env": put["env"]}, secrets=secrets, seconds=self.seconds)
        return True

    def _refuse_unsynced(self, code: str, found: dict[str, Any]) -> None:
        """Raise NotSynced if nothing may be installed and something would have to be."""
        if self.mode is not Mode.FROZEN:
            return
        if found["code"] != "ok":
            now = found["current"]["code"] if found["current"] else "none"
            difference = (
                "is not on the box" if found["code"] == "missing" else f"was changed: {found['code']}"
            )
            raise NotSynced(f"--frozen: version {code} {difference} (current there: {now}); use --reuse")
        if found["env"] is None:
            raise NotSynced("--frozen: the environment of this locked set is not on the box; use --reuse")

    def _tell_sync(
        self, contents: payload.Payload, found: dict[str, Any], has_code: bool, has_env: bool
    ) -> None:
        if has_code:
            self.note(f"version {contents.code}: on the box, verified")
        else:
            damaged = found["code"] not in ("ok", "missing")
            reason = f" again, as {found['code']} was changed on the box" if damaged else ""
            self.note(f"version {contents.code}: sent{reason} ({len(contents.files)} files)")
        if has_env:
            self.note(f"environment {found['env']}: on the box")

    def _is_current(self, release: dict[str, Any], secrets: str, found: dict[str, Any]) -> bool:
        current = found["current"]
        if current is None or hashlib.sha256(secrets.encode()).hexdigest() != found["secrets"]:
            return False
        return all(current[name] == release[name] for name in release)

    def _model(self, remote: Remote, found: dict[str, Any]) -> str:
        """`--model` of the service. A folder of this machine is uploaded."""
        if self.box.model is None:
            raise InvalidRequest("no model: set --model to a hub id, a folder on the box, or ./folder")
        source = model_names.parse(self.box.model).source
        if not source.startswith(_LOCAL_STARTS):
            return self.box.model
        folder = Path(source)
        if not folder.is_dir():
            raise InvalidRequest(f"--model {source}: no such folder")
        given = self.box.model.removesuffix(source).removesuffix("=")
        digest = payload.digest_of_folder(folder)
        if digest not in found["models"]:
            if self.mode is Mode.FROZEN:
                raise NotSynced(f"--frozen: the model {source} is not on the box; use --reuse")
            self.note(f"model {source}: sent")
            remote.unpack(partial(payload.tar_of_folder, folder), f"models/{digest}")
        return f"{given or folder.resolve().name}={remote.root}/models/{digest}"

    def _smoke(self, ready: Deployment, remote: Remote, changed: bool) -> None:
        """Test the service through the tunnel. A new release that fails is rolled back."""

        def report(step: Step) -> None:
            self.note(f"smoke: {step.outcome:<6} {step.step:<10} {step.seconds:6.1f} s  {step.detail}")

        try:
            with Client(ready.url, self.api_key or self._key()) as client:
                Smoke(client, report).run()
        except ActographError as error:
            if not changed or remote.call("status")["previous"] is None:
                raise
            remote.call("rollback", seconds=self.seconds)
            raise BoxFailed(f"the smoke test failed: {error}; the former release serves again") from error

    def _key(self) -> str:
        if self.box.env_file is None:
            return ""
        keys = read_env(Path(self.box.env_file)).get("ACTOGRAPH_API_KEYS", "")
        return keys.partition(",")[0].strip()
