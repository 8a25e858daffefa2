"""Waiting for a job's end."""

from typing import Any

import pytest
from starlette.responses import Response

from actograph.client import ActographError, Client, JobFailed, WaitTimeout
from actograph.contract.errors import CaptureFailed
from actograph.contract.resources import JobStatus
from tests.integration.api.client.conftest import Wire
from tests.integration.api.conftest import Service
from tests.support import leasing

FAILURES = {"max_consecutive_failures": 1}


def fail(service: Service, job_id: str) -> None:
    """End a job by the failure of its samples."""
    for lease in service.claim(job_id):
        with service.database.write() as session:
            leasing.fail(session, lease, CaptureFailed("it broke"))


def test_it_waits_for_the_end_however_it_comes(
    service: Service, client: Client, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    ends: dict[JobStatus, Any] = {
        JobStatus.COMPLETED: lambda job_id: service.finish(*service.claim(job_id)),
        JobStatus.FAILED: lambda job_id: fail(service, job_id),
        JobStatus.CANCELLED: lambda job_id: service.client.post(f"/v1/jobs/{job_id}/cancel"),
    }
    for status, end in ends.items():
        job_id = service.submit(**FAILURES)
        monkeypatch.setattr("actograph.client.jobs.sleep", lambda _, end=end, job_id=job_id: end(job_id))
        with subtests.test(status=status):
            assert client.jobs.get(job_id).wait(check=False).status is status


def test_a_failed_job_is_an_error(service: Service, client: Client) -> None:
    job_id = service.submit(**FAILURES)
    fail(service, job_id)
    with pytest.raises(JobFailed, match=f"job {job_id} failed: .*it broke"):
        client.jobs.get(job_id).wait()
    other = service.submit()
    service.client.post(f"/v1/jobs/{other}/cancel")
    with pytest.raises(ActographError, match="cancelled"):
        client.jobs.wait(other)


def test_a_short_outage_does_not_end_the_wait(
    service: Service, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = service.submit()
    faults: list[Response | str] = ["drop", Response("busy", 503)]

    def fail_or_end(_seconds: float) -> None:
        if faults:
            wire.faults.append(faults.pop(0))
        else:
            service.finish(*service.claim(job_id))

    monkeypatch.setattr("actograph.client.jobs.sleep", fail_or_end)
    with Client(wire.url, "", retries=0) as client:
        assert client.jobs.wait(job_id).status is JobStatus.COMPLETED
    assert wire.faults == faults == []


def test_patience_ends_and_the_job_goes_on(service: Service, wire: Wire, client: Client) -> None:
    job_id = service.submit(inputs=[{"prompt": "a"}, {"prompt": "b"}])
    service.finish(*service.claim(job_id))
    with pytest.raises(WaitTimeout, match=r"in_progress after 0\.05 s \(1 of 2 samples\)"):
        client.jobs.wait(job_id, timeout=0.05)
    assert wire.paths("POST") == []
