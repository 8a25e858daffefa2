"""Boxes: the file that names them, and the records of deployments to them."""

import re
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator

from actograph.contract.base import Spec
from actograph.contract.errors import InvalidRequest, NotFound

Port = Annotated[int, Field(ge=1, le=65_535)]
_TARGET = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9_][A-Za-z0-9_.-]*(?::[0-9]{1,5})?")
#: files and folders of this machine; in boxes.yaml they are relative to its folder
_PATHS = ("env_file", "wheels", "lock")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Box(Spec):
    """A machine and its service."""

    target: str = Field(description="`user@host[:port]`, or a host of the OpenSSH configuration.")
    folder: str = Field("actograph", description="Folder of the deployment; relative to the user's home.")
    model: str | None = Field(
        None, description="Hub id, folder on the box, or `./folder` of this machine, which is uploaded."
    )
    port: Port = Field(8420, description="Port of the service on the box's loopback.")
    local_port: Port | None = Field(
        None, description="Port of the tunnel here; null: the same, or a free one."
    )
    options: str = Field("", description="More flags of `actograph up`.")
    env_file: str | None = Field(None, description="Settings and secrets of the service: NAME=value lines.")
    python: str | None = Field(None, description="Python on the box, whose packages are used.")
    wheels: str | None = Field(None, description="Folder of wheels, which is uploaded for pip.")
    pip: str = Field("", description="More flags of `pip install`.")
    lock: str | None = Field(None, description="File of pinned versions; null: those of this installation.")
    ssh: str = Field("ssh", description="The ssh command, with flags such as -F or -J.")

    @field_validator("target")
    @classmethod
    def _is_target(cls, value: str) -> str:
        if not _TARGET.fullmatch(value):
            raise ValueError(f"{value!r} is not user@host[:port]")
        return value

    @field_validator("folder")
    @classmethod
    def _is_folder_of_its_own(cls, value: str) -> str:
        if (
            not re.fullmatch(r"/?[A-Za-z0-9._][A-Za-z0-9._/ -]*", value)
            or ".." in value
            or value.strip("/.") == ""
        ):
            raise ValueError(f"{value!r} is not a folder name")
        return value

    @property
    def host(self) -> str:
        return self.target.partition("@")[2].partition(":")[0] or self.target.partition(":")[0]


class Deployment(BaseModel):
    """Record of a deployment, kept on this machine."""

    name: str
    box: Box
    #: absolute paths on the box
    root: str
    python: str
    local_port: int | None = None
    tunnel_pid: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.local_port}"


class Boxes:
    """`boxes.yaml`, written by the user, and `deployments/NAME.json`, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "boxes.yaml"
        self._records = folder / "deployments"

    def box(self, typed: str) -> tuple[str, dict[str, Any]]:
        """Return the name and the fields of a box, given by its name or as `user@host[:port]`.

        Raises:
            InvalidRequest: boxes.yaml is not valid.
        """
        known = self._read()
        if typed in known:
            fields = known[typed]
            paths = {key: str(self.file.parent / fields[key]) for key in _PATHS if fields.get(key)}
            return typed, fields | paths
        recorded = self._record_file(typed)
        if recorded is not None and recorded.is_file():
            return typed, self.deployment(typed).box.model_dump(exclude_defaults=True)
        if not _TARGET.fullmatch(typed):
            raise InvalidRequest(f"{typed!r} is neither a box of {self.file} nor user@host[:port]")
        return re.sub(r"[^A-Za-z0-9._-]", "_", typed.partition("@")[2] or typed), {"target": typed}

    def _read(self) -> dict[str, dict[str, Any]]:
        if not self.file.is_file():
            return {}
        try:
            found = yaml.safe_load(self.file.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise InvalidRequest(f"{self.file}: {' '.join(str(error).split())}") from None
        boxes = found.get("boxes") if isinstance(found, dict) else None
        if not isinstance(boxes, dict) or not all(isinstance(box, dict) for box in boxes.values()):
            raise InvalidRequest(f"{self.file}: expected `boxes:` with a mapping of names to fields")
        return {str(name): box for name, box in boxes.items()}

    def _record_file(self, name: str) -> Path | None:
        return self._records / f"{name}.json" if _NAME.fullmatch(name) else None

    def names(self) -> list[str]:
        """Names of all deployments."""
        return sorted(path.stem for path in self._records.glob("*.json"))

    def deployment(self, typed: str | None) -> Deployment:
        """Return a deployment by its name or target; None: the only one.

        Raises:
            NotFound: there is none, or there are several.
        """
        names = self.names()
        if typed is None:
            if len(names) != 1:
                raise NotFound(f"name a box; deployed: {', '.join(names) or 'none'}")
            typed = names[0]
        for name in names:
            found = Deployment.model_validate_json(
                (self._records / f"{name}.json").read_text(encoding="utf-8")
            )
            if typed in (name, found.box.target):
                return found
        raise NotFound(f"no deployment {typed!r}; deployed: {', '.join(names) or 'none'}")

    def save(self, deployment: Deployment) -> None:
        self._records.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._records / f"{deployment.name}.json"
        part = path.with_suffix(".part")
        part.write_text(deployment.model_dump_json(indent=1), encoding="utf-8")
        part.replace(path)

    def forget(self, name: str) -> None:
        (self._records / f"{name}.json").unlink(missing_ok=True)


def box_of(fields: dict[str, Any]) -> Box:
    """Check the fields of a box.

    Raises:
        InvalidRequest: a field is unknown or has a bad value.
    """
    try:
        return Box.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidRequest(f"box: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
