"""Changes in mid-drain that no running job may notice: reloads, deletions, new processes, no broker for long.

None of them may cost a sample that somebody holds: nobody who holds one is killed.
"""

import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import psutil

from actograph.client import Client
from actograph.contract.errors import ActographError
from actograph.contract.resources import JobStatus
from tests.support.broker import broker_of
from tests.support.chaos.stack import Injected, NotMidWork, Outage, Stack, Strike
from tests.support.processes import has_ended, words_of

MODEL = "chaos"
#: under this name of the client's own a job asks for a hook, which a reload gives to another
SAVEPOINT = "late"
AS_AT_FIRST: dict[str, Any] = {"savepoints": [{"name": SAVEPOINT, "selector": "mlp_out.0"}]}
#: what a deletion may take until it is accepted, and a program until it is back, on a busy machine
PATIENCE_SECONDS = 90.0
#: the API is killed at a random moment up to so long after it was asked to delete
DELETION_SECONDS = 0.1
_REDIS_TRIES = 5


def _held(stack: Stack) -> list[str]:
    held = stack.held()
    if not held:
        raise NotMidWork("no worker has samples in hand")
    return held


def _reload(**options: Any) -> Strike:
    """A client has the model loaded in another way, and it is so loaded while the drain goes on."""

    def strike(stack: Stack) -> Injected:
        held, at = _held(stack), time.time()
        try:
            asked = stack.client.models.load(MODEL, **options)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while not asked.status.is_terminal() and time.monotonic() < deadline:
                time.sleep(0.02)
                asked = stack.client.models.get_load(asked.id)
        except ActographError as error:
            raise NotMidWork(f"the reload was not accepted: {error}") from None
        if asked.status is not JobStatus.COMPLETED:
            raise NotMidWork(f"the reload did not end well: {asked.status}")
        _held(stack)
        return Injected(in_hand=[], waiting=held, at=at)

    return strike


def delete_half_drained(stack: Stack) -> Injected:
    """Delete a job of which some samples have ended and some have not, and kill the API in the middle.

    Who deletes asks again until the job is gone, as a client would.
    """
    held = _held(stack)
    try:
        job_id = stack.client.submit({**stack.spec, "priority": 1}).id
        stack.deleted.append(job_id)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not stack.client.jobs.get(job_id).progress.completed:
            if time.monotonic() > deadline:
                raise NotMidWork("the job that is to be deleted does not begin")
            time.sleep(0.02)
        stack.client.jobs.cancel(job_id)
        api = stack.program("api")
    except ActographError as error:
        raise NotMidWork(f"no job to delete: {error}") from None
    url = f"http://127.0.0.1:{stack.port}/v1/jobs/{job_id}"
    asked = threading.Thread(target=_ask_to_delete, args=(url,))
    asked.start()
    time.sleep(random.uniform(0.0, DELETION_SECONDS))
    api.kill()
    at = time.time()
    asked.join()
    delete_for_good(stack.client, job_id)
    return Injected(in_hand=[], waiting=held, at=at)


def _ask_to_delete(url: str) -> None:
    try:
        httpx.delete(url, trust_env=False, timeout=PATIENCE_SECONDS)
    except httpx.HTTPError:
        return  # killed before it answered


def delete_for_good(client: Client, job_id: str) -> None:
    """Delete a job however often that takes. Raises NotMidWork where it cannot be had."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            client.jobs.delete(job_id)
            return
        except ActographError as error:
            if error.status == 404:  # an earlier attempt was carried out before its answer was lost
                return
            if time.monotonic() > deadline:
                raise NotMidWork(f"{job_id} cannot be deleted: {error}") from None
            time.sleep(0.1)


def hold_broker_down(stack: Stack) -> Injected:
    """Nobody listens at the broker's address for a minute; what is drained meanwhile is counted."""
    held = _held(stack)
    stopped = _stop_successor(stack)
    at, seconds = time.time(), stack.broker_down_seconds
    try:
        time.sleep(seconds)
        stack.outages.append(
            Outage(
                seconds=seconds,
                samples=stack.ended_between(at, at + seconds),
                samples_before=stack.ended_between(at - seconds, at),
            )
        )
    finally:
        stopped.resume()
    return Injected(in_hand=[], waiting=held, at=at)


def _stop_successor(stack: Stack) -> psutil.Process:
    """Kill the broker and stop the process that the supervisor starts in its place, before it listens."""
    port, _ = broker_of(stack.home)
    for _ in range(_REDIS_TRIES):
        known = {child.pid for child in stack.process.children()}
        stack.broker().kill()
        found = _new_child(stack, known, "redis.conf")
        found.suspend()
        if not _listens(found, port):
            return found
        found.resume()  # it was faster: once more
        time.sleep(1.0)
    raise NotMidWork("the broker always listened before it could be stopped")


def _new_child(stack: Stack, known: set[int], word: str) -> psutil.Process:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        for child in stack.process.children():
            if child.pid not in known and any(part.endswith(word) for part in words_of(child)):
                return child
        time.sleep(0.001)
    raise NotMidWork(f"nobody starts the program of {word} again")


def _listens(process: psutil.Process, port: int) -> bool:
    return any(one.laddr.port == port for one in process.net_connections(kind="tcp") if one.laddr)


def replace(stack: Stack) -> Injected:
    """Replace one worker and the API, as for a new version."""
    held = _held(stack)
    _, worker = stack.busy_worker()
    api = stack.program("api")
    at = time.time()
    _replace(stack, worker)
    _replace(stack, api)
    return Injected(in_hand=[], waiting=held, at=at)


def _replace(stack: Stack, process: psutil.Process) -> None:
    """SIGTERM, and wait until it has ended; the supervisor starts the next one."""
    process.send_signal(signal.SIGTERM)
    _await(lambda: has_ended(process), f"{process} does not end")


def _await(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise NotMidWork(otherwise)
        time.sleep(0.02)


BROKER_DOWN = "broker down for long"
RELOADS: dict[str, tuple[Strike, int]] = {
    "reload": (_reload(), 2),
    "reload in bfloat16": (_reload(**AS_AT_FIRST, dtype="bfloat16"), 2),
    "reload with another savepoint": (
        _reload(savepoints=[{"name": SAVEPOINT, "selector": "mlp_out.1"}]), 2,
    ),
}  # fmt: skip
CHANGES: dict[str, tuple[Strike, int]] = RELOADS | {
    "delete a job, kill -9 API": (delete_half_drained, 3),
    BROKER_DOWN: (hold_broker_down, 1),
    "replace worker and API": (replace, 1),
}
