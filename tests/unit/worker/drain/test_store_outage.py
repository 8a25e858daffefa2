"""Pauses of an unavailable store: one check for many writers, and bounded patience."""

from itertools import pairwise
from typing import Any

import pytest

from actograph.contract.errors import ServiceUnavailable
from worker.drain import store_outage
from worker.drain.store_outage import StoreOutage

AWAY = ServiceUnavailable("S3 answers 503")


class Store:
    """Works from the moment `back_at` on; time passes only while somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, back_at: float) -> None:
        self.now, self.back_at, self.checks = 0.0, back_at, list[float]()
        monkeypatch.setattr(store_outage.time, "sleep", self._sleep)
        self.outage = StoreOutage(self, clock=lambda: self.now)  # type: ignore[arg-type]

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def check(self) -> None:
        self.checks.append(self.now)
        if self.now < self.back_at:
            raise AWAY

    def wait(self, **changes: Any) -> bool:
        given = {"gives_up": lambda: False, "progress": lambda: None} | changes
        return self.outage.wait(AWAY, **given)


def test_a_writer_waits_until_the_store_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store, progress = Store(monkeypatch, back_at=60), list[float]()
    assert store.wait(progress=lambda: progress.append(store.now))
    assert 60 <= store.now <= 60 + store_outage.LONGEST_PAUSE_SECONDS
    pauses = [after - before for before, after in zip([0.0, *store.checks], store.checks, strict=False)]
    assert pauses == sorted(pauses)
    assert pauses[-1] <= store_outage.LONGEST_PAUSE_SECONDS
    assert max(b - a for a, b in pairwise(progress)) <= 1, "waiting is no stall"
    assert not store.outage.holds()


def test_many_writers_share_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(monkeypatch, back_at=60)
    for _ in range(64):
        store.outage.note(AWAY)
    assert store.outage.holds()
    store.now = store_outage.FIRST_PAUSE_SECONDS
    assert store.outage.holds()
    assert len(store.checks) == 1


def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(monkeypatch, back_at=1e9)
    assert not store.wait()
    assert store.now == pytest.approx(store_outage.LONGEST_WAIT_SECONDS, abs=1)
    began = store.now
    assert not store.wait(), "those that come later do not wait anew"
    assert store.now == began
    assert store.outage.reason is AWAY
    store.outage.is_over()
    assert not store.outage.holds()


def test_a_stop_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(monkeypatch, back_at=1e9)
    assert not store.wait(gives_up=lambda: store.now >= 3)
    assert store.now == pytest.approx(3, abs=store_outage.FIRST_PAUSE_SECONDS)
