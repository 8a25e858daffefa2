"""A disk that is full: uploads end above the floor, what cannot be stored is a 507, and deleting works."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from actograph.settings import Settings
from storage.index.disk_reserve import RESERVE_BYTES
from tests.integration.api.conftest import Problem, Service, Start
from tests.support.indexes import create_index

MIB = 1 << 20
FLOOR = 16 * MIB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("file systems cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def service(start: Start, settings: Settings, small_disk: Path) -> Service:
    """Index and store are on the small disk, the index of Postgres elsewhere."""
    if not settings.effective_database_url.startswith("sqlite"):
        pytest.skip("the reserve is for the index that shares the disk of the store")
    home = small_disk / "home"
    changes = {"home": home, "database_url": "", "artifact_url": "", "disk_floor_bytes": FLOOR}
    moved = settings.model_copy(update=changes)
    from storage.index.database import Database

    database = Database(moved.effective_database_url)
    create_index(database)
    database.close()
    return start(moved)


def free(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def fill(folder: Path) -> Path:
    """Fill the disk to the last byte, as another program may."""
    junk = folder / "junk"
    with junk.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(MIB))
    with junk.open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(512))
    return junk


def upload(service: Service, size: int) -> Any:
    return service.client.post("/v1/files", files={"file": ("a.jsonl", b"x" * size)})


def test_uploads_end_above_the_floor(service: Service, small_disk: Path, problem: Problem) -> None:
    kept = []
    for _ in range(20):
        answer = upload(service, 10 * MIB)
        if answer.status_code != 200:
            break
        kept.append(answer.json()["id"])
    body = problem(answer, 507, "storage_full", says="ACTOGRAPH_DISK_FLOOR_BYTES")
    assert "delete" in body["detail"]
    assert len(kept) >= 5
    assert FLOOR - MIB <= free(small_disk) < FLOOR + 12 * MIB
    assert len(list((small_disk / "home" / "artifacts" / "files").iterdir())) == len(kept)
    assert service.client.delete(f"/v1/files/{kept[0]}").status_code == 200
    assert upload(service, 5 * MIB).status_code == 200


def test_deleting_works_on_a_disk_without_a_free_byte(
    service: Service, small_disk: Path, problem: Problem
) -> None:
    reserve = service.database.reserve
    assert reserve is not None
    assert reserve.path.stat().st_size == RESERVE_BYTES
    files = [upload(service, 2 * MIB).json()["id"] for _ in range(3)]
    jobs = [service.submit(inputs=[{"prompt": "word " * 2000}] * 50) for _ in range(2)]
    junk = fill(small_disk)
    assert free(small_disk) == 0
    problem(upload(service, MIB), 507, "storage_full")
    long = [{"prompt": "word " * 20_000}] * 70
    spec = {"kind": "capture", "model": "demo", "inputs": long, "capture": None}
    body = problem(service.client.post("/v1/jobs", json=spec), 507, "storage_full")
    assert "delete sessions, jobs or files" in body["detail"]
    for file_id in files:
        assert service.client.delete(f"/v1/files/{file_id}").status_code == 200
    for job_id in jobs:
        service.client.post(f"/v1/jobs/{job_id}/cancel")
        assert service.client.delete(f"/v1/jobs/{job_id}").status_code == 200, job_id
    assert service.client.post("/v1/store/gc", json={"dry_run": False}).status_code == 200
    assert not reserve.path.exists()
    reserve.restore()
    assert not reserve.path.exists(), "no room yet"
    junk.unlink()
    service.reconcile()
    assert reserve.path.stat().st_size == RESERVE_BYTES
