"""The API process removes what a killed worker left in the store, and only that."""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from actograph.settings import Settings
from storage.artifacts.local import LocalStore
from storage.index.ids import new_session_id
from storage.sessions.writer import TensorRows, session_prefix
from storage.tables.models import DutyRow

if TYPE_CHECKING:
    from tests.integration.api.conftest import Service, Start

pytestmark = pytest.mark.integration


def tensors() -> dict[str, TensorRows]:
    return {"embed": TensorRows("embed", "F32", (6, 8), 0, bytes(6 * 8 * 4))}


def age_all(store: LocalStore, seconds: float) -> None:
    for path in store.root.rglob("ses_*"):
        for one in (*path.iterdir(), path):
            os.utime(one, (time.time() - seconds,) * 2)


def stored(store: LocalStore) -> set[str]:
    return {p.prefix.rpartition("/")[2] for p in store.list_prefixes("sessions")}


def test_superseded_sessions_go_by_themselves(
    service: "Service", start: "Start", settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    (lease,) = service.claim(service.submit())
    orphan, unknown = new_session_id(), new_session_id()
    service._write_session(orphan, lease, tensors())
    kept = service.finish(lease, tensors=tensors())
    stranger = replace(lease, id="smp_" + "0" * 32)
    service._write_session(unknown, stranger, tensors())
    store = LocalStore(Path(settings.effective_artifact_url.removeprefix("file://")))
    assert kept is not None
    assert stored(store) == {orphan, unknown, kept}
    age_all(store, 2 * 3600)
    with service.database.write() as session:
        session.execute(sa.delete(DutyRow))  # a day later
    start(settings)  # the first round is made at once
    wait_for(lambda: not store.exists(session_prefix(orphan)))
    wait_for(lambda: "are not in the index and are left alone" in caplog.text)
    assert stored(store) == {unknown, kept}
    assert service.client.get(f"/v1/activations/sessions/{kept}").status_code == 200


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
