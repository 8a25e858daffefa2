"""One source for both clients: the plain one is made of the asynchronous one."""

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import actograph
from actograph.client import ApiError, AsyncClient, Client, unasync

SPEC = {"kind": "evaluation", "model": "demo", "dataset": {"file_id": "file_" + "0" * 32}}


def test_the_plain_client_is_up_to_date() -> None:
    made = unasync.generated()
    assert unasync.existing() == set(made)
    differing = [path.name for path, text in made.items() if path.read_text(encoding="utf-8") != text]
    assert differing == [], "run: python actograph/client/unasync.py"


def test_what_is_made_waits_for_each_answer() -> None:
    source = (
        "async def f(self) -> AsyncIterator[int]:\n"
        "    async with self.stream() as s:\n"
        "        async for line in s.aiter_lines():\n"
        "            yield await self.read(line)\n"
    )
    assert unasync.plain(source) == (
        "def f(self) -> Iterator[int]:\n"
        "    with self.stream() as s:\n"
        "        for line in s.iter_lines():\n"
        "            yield self.read(line)\n"
    )


def test_both_have_the_same_calls_with_the_same_arguments() -> None:
    def calls(client: Any) -> dict[str, list[str]]:
        resources = {"client": client} | {name: one for name, one in vars(client).items() if name[0] != "_"}
        return {
            f"{resource}.{name}": list(inspect.signature(member).parameters)
            for resource, of in resources.items()
            for name, member in inspect.getmembers(type(of), inspect.isfunction)
            if (not name.startswith("_") or name == "__call__") and name not in ("close", "aclose")
        }

    url = "http://127.0.0.1:1"
    assert calls(AsyncClient(url, "")) == calls(Client(url, ""))
    assert {"client.submit", "jobs.submit", "sessions.list", "chat.__call__"} <= calls(Client(url, "")).keys()


def test_coroutines_submit_list_and_tell_errors(service: Any, go: Any) -> None:
    service.faults = ["lose", 503]

    async def talk(client: AsyncClient) -> None:
        job = await client.submit(SPEC)
        assert list(service.jobs) == [job.id]
        assert [one.id async for one in client.jobs.list()] == [job.id]
        assert await client.workers.list() == []
        with pytest.raises(ApiError, match="no job"):
            await client.jobs.get("job_1")

    go(talk)


def test_coroutines_follow_events_over_broken_connections(service: Any, go: Any) -> None:
    job = service.add_job(1)
    service.add_events(job.id, ("job.queued", {}), ("job.started", {}), ("job.completed", {}))
    service.stream_cuts = [1, 0]

    async def talk(client: AsyncClient) -> list[int]:
        return [event.id async for event in client.jobs.events(job.id)]

    assert go(talk) == [1, 2, 3]


def test_coroutines_upload_and_download(service: Any, go: Any, tmp_path: Path) -> None:
    data = bytes(range(256)) * 4000
    session = service.add_session(1, {"a.bin": data})
    service.download_cuts = [100_000]
    (tmp_path / "up.bin").write_bytes(data)

    async def talk(client: AsyncClient) -> None:
        file = await client.files.upload(tmp_path / "up.bin")
        assert service.uploads[file.id][2] == data
        await client.sessions.download_file(session.id, "a.bin", tmp_path / "a.bin")

    go(talk)
    assert (tmp_path / "a.bin").read_bytes() == data


@pytest.mark.integration
def test_the_package_gives_both_and_loads_them_late() -> None:
    assert actograph.Client is Client
    assert actograph.AsyncClient is AsyncClient
    with pytest.raises(AttributeError, match="Nobody"):
        _ = actograph.Nobody
    program = (
        "import sys, actograph; early = 'httpx' in sys.modules; from actograph import Client; "
        "print(early, [m for m in ('torch', 'pandas', 'sqlalchemy', 'fastapi', 'boto3') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.split(maxsplit=1) == ["False", "[]\n"]
