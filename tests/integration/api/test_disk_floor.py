"""A disk that is nearly full pauses the queue; nothing is lost, and it resumes by itself."""

import logging
from dataclasses import replace

import pytest

from tests.integration.api.conftest import Service, StoreWithDisk
from worker.drain.pauses import Pauses


def test_the_queue_says_why_it_is_paused_and_goes_on_by_itself(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    services = service.services
    floor = services.settings.disk_floor_bytes
    disk = StoreWithDisk(services.store, floor)
    service.app.state.services = replace(services, store=disk)
    shown = service.client.get("/v1/queue").json()
    assert (shown["paused"], shown["paused_reason"]) == (False, None)
    job_id = service.submit(capture=None)
    disk.free = floor - 1
    pauses = Pauses(services.settings, services.database, service.services.store)
    with caplog.at_level(logging.INFO, "worker.drain.pauses"):
        assert pauses.hold()
        assert pauses.hold()
        assert caplog.text.count("no sample may start") == 1, "said once, not at every look"
        shown = service.client.get("/v1/queue").json()
        assert shown["paused"] is True
        assert f"{floor - 1:,} bytes free" in shown["paused_reason"]
        assert service.client.get(f"/v1/jobs/{job_id}").json()["status"] == "queued"
        assert service.submit(capture=None), "jobs are still taken"
        assert service.next_job() is None

        disk.free = floor
        assert not pauses.hold()
        assert "samples start again" in caplog.text
    assert service.next_job() == job_id
    assert service.client.get("/v1/queue").json()["paused"] is False
