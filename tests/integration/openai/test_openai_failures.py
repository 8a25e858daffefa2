"""Requests that cannot be answered, as the openai package tells them and repeats them."""

import threading
from collections.abc import Callable
from typing import Any

import openai
import pytest

from actograph.contract.operations import NewKey
from actograph.contract.resources import JobStatus
from actograph.contract.roles import Role
from storage.accounts import api_keys
from storage.queue import leases
from tests.support import leasing

MODEL = "tiny-qwen3"
ASKED: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Tom has 3 apples and buys 4 more. How many?"}],
    "max_tokens": 4,
}

Eventually = Callable[[Callable[[], bool]], None]


def test_a_capture_beyond_its_owner_s_quota_is_refused_with_the_numbers(service: Any) -> None:
    with service.database.write() as session:
        api_keys.create(session, NewKey(name="ops", role=Role.ADMIN))
        _, key = api_keys.create(session, NewKey(name="ann", role=Role.SUBMIT, quota_bytes=1))
    with service.client(api_key=key) as client:
        with pytest.raises(openai.APIStatusError, match="available 1 within the quota") as raised:
            client.chat.completions.create(**ASKED, extra_body={"store_activations": True})
        assert (raised.value.code, raised.value.param) == ("quota_exceeded", "capture")
        # what stores nothing is answered
        assert client.chat.completions.create(**ASKED).choices


def test_a_request_that_kills_workers_fails_and_is_not_repeated(service: Any, eventually: Eventually) -> None:
    service.works.clear()
    told: list[openai.APIStatusError] = []

    def ask() -> None:
        with service.client(max_retries=3) as client:
            try:
                client.chat.completions.create(stream=True, **ASKED)
            except openai.APIStatusError as error:
                told.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    eventually(lambda: len(service.jobs()) == 1)
    (job,) = service.jobs()
    for _ in range(leases.FAILED_AFTER):
        with service.database.write() as session:
            assert len(leasing.claim(session, job.id, worker_id="wrk_dead")) == 1
        leasing.lose(service.database, "wrk_dead")
    service.works.set()
    asking.join()
    (error,) = told
    assert (error.status_code, error.code) == (500, "worker_lost") and "4 times" in error.message
    assert len(service.jobs()) == 1


@pytest.mark.soak
@pytest.mark.parametrize("stream", [False, True])
def test_repeats_after_a_timeout_leave_nothing_running(
    service: Any, eventually: Eventually, stream: bool
) -> None:
    """Nobody answers, so that each attempt ends in the queue; the package sends it three times at most."""
    service.works.clear()
    with service.client(timeout=1.0, max_retries=2) as client, pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(stream=stream, **ASKED)
    eventually(lambda: {job.status for job in service.jobs()} == {JobStatus.CANCELLED})
    assert len(service.jobs()) <= 3
    # what was cancelled in the queue is never run
    service.works.set()
    with service.client() as client:
        assert client.chat.completions.create(**ASKED).choices
    ran = [job for job in service.jobs() if job.status == JobStatus.COMPLETED]
    assert len(ran) == 1 and all(job.started_at is None for job in service.jobs() if job not in ran)
