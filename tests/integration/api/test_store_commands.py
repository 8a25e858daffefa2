"""`actograph store` and the commands that change many sessions, against the real application."""

import json

import pytest

from actograph.client import Client
from actograph.contract.specs import SessionUpdate
from actograph.short_texts import size
from storage.sessions import changes
from tests.integration.api.conftest import EMBED, Service
from tests.support.command_line import Run


@pytest.fixture
def made(service: Service) -> list[str]:
    """Four sessions of one job with the tag `night`, two of them correct."""
    job_id = service.submit(inputs=[{"prompt": str(i)} for i in range(4)], tags=["night"])
    leases = service.claim(job_id, 4)
    ids = [service.finish(lease, tensors=EMBED, correct=i < 2) for i, lease in enumerate(leases)]
    return [session_id for session_id in ids if session_id is not None]


def test_many_are_removed_by_filter_once_that_was_agreed_to(run: Run, url: str, made: list[str]) -> None:
    run("sessions", "update", made[0], "--pin")
    code, _, err = run("sessions", "rm", "--correct", "--dry-run")
    assert (code, err.partition(",")[0]) == (0, "to be deleted: 1 sessions")
    assert "1 pinned sessions stay" in err
    code, _, err = run("sessions", "rm", "--correct")
    assert (code, "--yes" in err) == (1, True)
    assert run("sessions", "rm", "--correct", "--yes")[0] == 0
    with Client(url, "") as client:
        assert {session.id for session in client.sessions.list()} == {made[0], *made[2:]}
        job_id = client.sessions.get(made[0]).job_id
    code, _, err = run("jobs", "rm", job_id)
    assert (code, "Delete 1 job with its samples and sessions? Without a terminal, use --yes" in err) == (
        1,
        True,
    )
    code, _, err = run("jobs", "rm", "--yes", job_id)
    assert (code, "pinned" in err) == (1, True)
    assert run("jobs", "rm", "--yes", job_id, "--include-pinned") == (0, job_id + "\n", "")


def test_sessions_by_id_are_removed_once_that_was_agreed_to(run: Run, url: str, made: list[str]) -> None:
    run("sessions", "update", made[0], "--pin")
    with Client(url, "") as client:
        one = size(client.sessions.get(made[1]).bytes)
        code, out, err = run("sessions", "rm", made[1][:20], "--dry-run")
        assert (code, err) == (0, f"to be deleted: 1 session, {one}\n")
        code, out, err = run("sessions", "rm", made[1])
        assert (code, out, f"Delete 1 session, {one}? Without a terminal, use --yes" in err) == (1, "", True)
        assert run("sessions", "rm", made[1], "ses_" + "0" * 32, "--yes")[0] == 1
        assert len(list(client.sessions.list())) == 4, "nothing is deleted if an id is unknown"
        code, out, err = run("sessions", "rm", *made[:2], made[1], "--yes")
        assert (code, out) == (1, made[1] + "\n"), "the pinned one stays"
        assert "unpin it first" in err
        assert err.endswith(f"deleted 1 of 2 sessions, {one}\n")


def test_a_check_names_what_is_wrong_and_ends_with_1(run: Run, service: Service, made: list[str]) -> None:
    code, out, err = run("store", "verify")
    assert (code, out) == (0, "")
    assert "checked 4, " in err
    service.services.store.delete_many({f"sessions/{made[2]}": None})
    code, out, err = run("store", "verify")
    assert code == 1
    header, line = out.splitlines()
    assert header.split() == ["ID", "PROBLEM", "DETAIL"]
    assert line.split()[:2] == [made[2], "missing"]
    assert err.splitlines()[-1].endswith(": 1 missing")
    code, out, _ = run("store", "verify", "--format", "json")
    assert (code, json.loads(out)["id"]) == (1, made[2])
    assert run("store", "verify", "--sample", "0.000001", "--seed", "1")[0] == 0


def test_clearing_says_what_went(run: Run, service: Service, url: str, made: list[str]) -> None:
    with service.database.write() as session:
        changes.update(session, [made[3]], SessionUpdate(expires_at=5))
    dry = run("store", "gc", "--dry-run")
    assert dry[0] == 0
    lines = [line.rsplit(maxsplit=1) for line in dry[1].splitlines()]
    assert dry[1].startswith("TO BE REMOVED")
    assert lines[1] == ["expired sessions", "1"]
    code, out, _ = run("store", "gc", "--format", "json")
    assert (code, json.loads(out.splitlines()[0])["expired_sessions"]) == (0, 1)
    assert run("store", "gc")[1].startswith("REMOVED")
    with Client(url, "") as client:
        assert {session.id for session in client.sessions.list()} == set(made[:3])
