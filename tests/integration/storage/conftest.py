"""An S3 server of our own: OpenStack Swift, whose S3 API checks signatures and checksums.

It lives in a virtual environment of its own, `.venv-swift` beside `.venv` (ignored by git), which is
built on the first run. Where that cannot be done, tests skip locally and fail in CI.
"""

import fcntl
import getpass
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import boto3
import pytest
from botocore.config import Config

REPO = Path(__file__).resolve().parents[3]
SWIFT = "swift==2.38.3"
ACCESS_KEY, SECRET_KEY = "tests:tester", "testing"
BACKENDS = ("account", "container", "object")

COMMON = """
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
user = {user}
swift_dir = {home}
devices = {home}/devices
mount_check = false
disable_fallocate = true
"""
BACKEND = """
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""
# PR_SET_PDEATHSIG outlives exec: a test run that is killed takes its servers along.
DIE_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"
)
FILTERS = ("catch_errors", "gatekeeper", "healthcheck", "listing_formats", "bulk", "s3api", "tempauth",
           "copy", "slo", "dlo", "versioned_writes", "symlink")  # fmt: skip
FILTER_OPTIONS = {
    "s3api": "location = us-east-1\ns3_acl = false\ncheck_bucket_owner = false\n",
    "tempauth": f"user_{ACCESS_KEY.replace(':', '_')} = {SECRET_KEY} .admin\n",
    "versioned_writes": "allow_object_versioning = true\n",
}


def unavailable(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def swift_bin() -> Path:
    """The programs of Swift, installed where they are not yet."""
    venv = REPO / ".venv-swift"
    stamp = venv / ".installed"
    venv.mkdir(exist_ok=True)
    with (venv / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run may be at it
        if not stamp.exists() or stamp.read_text() != SWIFT:
            for command in (
                [sys.executable, "-m", "venv", str(venv)],
                [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", SWIFT],
            ):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    unavailable(f"no S3 server: {' '.join(command)} failed: {done.stderr[-400:]}")
            stamp.write_text(SWIFT)
    return venv / "bin"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def configure(home: Path, programs: Path) -> int:
    """Write the configuration and the rings of a one-disk cluster; the proxy's port."""
    (home / "devices/d1").mkdir(parents=True)
    (home / "swift.conf").write_text(
        "[swift-hash]\nswift_hash_path_suffix = tests\nswift_hash_path_prefix = tests\n"
        "[storage-policy:0]\nname = default\ndefault = yes\n"
    )
    user = getpass.getuser()
    for kind in BACKENDS:
        port = free_port()
        text = COMMON.format(port=port, user=user, home=home) + BACKEND.format(kind=kind)
        (home / f"{kind}.conf").write_text(text)
        builder = str(home / f"{kind}.builder")
        for step in (
            ["create", "4", "1", "1"],
            ["add", f"r1z1-127.0.0.1:{port}/d1", "1"],
            ["rebalance"],
        ):
            done = subprocess.run(
                [str(programs / "swift-ring-builder"), builder, *step],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode > 1:  # 1 is a warning
                unavailable(f"no S3 server: the {kind} ring could not be built: {done.stdout}")
    port = free_port()
    text = COMMON.format(port=port, user=user, home=home)
    text += f"[pipeline:main]\npipeline = {' '.join(FILTERS)} proxy-server\n"
    text += "[app:proxy-server]\nuse = egg:swift#proxy\naccount_autocreate = true\n"
    for name in FILTERS:
        text += f"[filter:{name}]\nuse = egg:swift#{name}\n{FILTER_OPTIONS.get(name, '')}"
    (home / "proxy.conf").write_text(text)
    return port


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a running S3 server."""
    programs = swift_bin()
    home = tmp_path_factory.mktemp("swift")
    port = configure(home, programs)
    processes = []
    try:
        for kind in (*BACKENDS, "proxy"):
            with (home / f"{kind}.log").open("wb") as log:
                processes.append(
                    subprocess.Popen(
                        [
                            sys.executable,
                            "-c",
                            DIE_WITH_PARENT,
                            str(programs / f"swift-{kind}-server"),
                            str(home / f"{kind}.conf"),
                            "-v",
                        ],
                        stdout=log,
                        stderr=subprocess.STDOUT,
                    )
                )
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 30
        while True:
            try:
                with urllib.request.urlopen(f"{url}/healthcheck", timeout=2):
                    break
            except (urllib.error.URLError, OSError) as error:
                if time.monotonic() > deadline or any(p.poll() is not None for p in processes):
                    unavailable(f"the S3 server did not start: {error}; its logs are in {home}")
                time.sleep(0.1)
        yield url
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


@pytest.fixture
def s3_environment(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The AWS environment in which boto3 finds the server, and nothing else of this machine."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    values = {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": s3_server,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3_bucket(s3_environment: None) -> str:
    """A new, empty bucket."""
    name = f"tests-{secrets.token_hex(8)}"
    client = boto3.session.Session().client("s3", config=Config(s3={"addressing_style": "path"}))
    client.create_bucket(Bucket=name)
    client.close()
    return name
