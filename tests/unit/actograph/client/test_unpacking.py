"""Archives unpacked piece by piece, and those that nobody should unpack."""

import gzip
import io
import random
import tarfile
from pathlib import Path

import pytest

from actograph.client import DownloadDamaged
from actograph.client.downloads import unpack

FILES = {
    "dataset.jsonl": b"",
    "samples/a.json": bytes(range(256)) * 700,
    f"samples/{'long' * 30}.json": b"a name beyond 100 bytes",
    "samples/a block.json": b"x" * 512,
    "summary.json": b"{}",
}


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", format=tarfile.PAX_FORMAT) as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


def unpacked(data: bytes, folder: Path, pieces: int = 1 << 16) -> list[str]:
    chunks = (data[start : start + pieces] for start in range(0, len(data), pieces))
    return list(unpack(chunks, folder, "job_1"))


def test_every_file_arrives_whatever_the_pieces(tmp_path: Path, subtests: pytest.Subtests) -> None:
    data = archive(*((tarfile.TarInfo(f"job_1/{name}"), body) for name, body in FILES.items()))
    for pieces in (1, 97, 1 << 20):
        with subtests.test(pieces=pieces):
            folder = tmp_path / str(pieces)
            assert unpacked(data, folder, pieces) == list(FILES)
            found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
            assert found == set(FILES)
            assert {name: (folder / name).read_bytes() for name in FILES} == FILES


def test_an_archive_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    data = archive((tarfile.TarInfo("job_1/cut"), random.Random(0).randbytes(100_000)))
    with pytest.raises(DownloadDamaged, match="cut off"):
        unpacked(data[: len(data) // 2], tmp_path)


@pytest.mark.parametrize(
    "name",
    ["job_1/../out", "/{folder}/out", "job_2/a", "job_1/"],
)
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "deep" / "folder"
    folder.mkdir(parents=True)
    with pytest.raises(DownloadDamaged, match="in the export"):
        unpacked(archive((tarfile.TarInfo(name.format(folder=tmp_path)), b"evil")), folder)
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_is_no_archive_is_told(tmp_path: Path) -> None:
    for data in (b"<html>a proxy's page</html>", gzip.compress(b"no archive" * 100, mtime=0)):
        with pytest.raises(DownloadDamaged, match=r"not a tar\.gz"):
            unpacked(data, tmp_path)
