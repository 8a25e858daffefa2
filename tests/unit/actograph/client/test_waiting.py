"""Waiting for a job's end."""

from typing import Any

import pytest

from actograph.client import ActographError, Client, JobFailed, WaitTimeout
from actograph.contract.resources import Job, JobStatus


def test_it_waits_for_the_end_however_it_comes(
    service: Any, client: Client, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    for status in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED):
        job = service.add_job(1, status="in_progress")

        def end(_seconds: float, job: Job = job, status: JobStatus = status) -> None:
            service.jobs[job.id] = job.model_copy(update={"status": status})

        monkeypatch.setattr("actograph.client.jobs.sleep", end)
        with subtests.test(status=status):
            assert client.jobs.get(job.id).wait(check=False).status is status


def test_a_failed_job_is_an_error(service: Any, client: Client) -> None:
    error = {"type": "x", "message": "it broke"}
    job = service.add_job(1, status="failed", error=error)
    with pytest.raises(JobFailed, match=f"job {job.id} failed: it broke"):
        client.jobs.get(job.id).wait()
    with pytest.raises(ActographError, match="cancelled"):
        client.jobs.wait(service.add_job(2, status="cancelled").id)


def test_a_short_outage_does_not_end_the_wait(service: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = service.add_job(1, status="in_progress")
    faults: list[int | str] = ["drop", 503]

    def fail_or_end(_seconds: float) -> None:
        if faults:
            service.faults.append(faults.pop(0))
        else:
            service.jobs[job.id] = job.model_copy(update={"status": JobStatus.COMPLETED})

    monkeypatch.setattr("actograph.client.jobs.sleep", fail_or_end)
    with Client(service.url, "", retries=0) as client:
        assert client.jobs.wait(job.id).status is JobStatus.COMPLETED
    assert service.faults == []


def test_patience_ends_and_the_job_goes_on(service: Any, client: Client) -> None:
    job = service.add_job(1, status="in_progress")
    with pytest.raises(WaitTimeout, match=r"in_progress after 0\.05 s \(0 of 4 samples\)"):
        client.jobs.wait(job.id, timeout=0.05)
    assert service.paths("POST") == []
