"""Idempotency keys: one answer for one key, whoever asks how often."""

import threading

import pytest
import sqlalchemy as sa

from actograph.contract.errors import IdempotencyInFlight, IdempotencyMismatch
from storage.index.database import Database
from storage.submission import idempotency
from storage.submission.idempotency import StoredAnswer
from storage.tables.models import IdempotencyRow


def begin(database: Database, key: str = "k", digest: str = "d", owner: str = "a") -> StoredAnswer | None:
    with database.write() as session:
        return idempotency.begin(session, owner, key, digest)


def finish(database: Database, key: str = "k", body: str = "answer") -> None:
    with database.write() as session:
        idempotency.finish(session, "a", key, 202, {"body": body})


def age(database: Database, seconds: float) -> None:
    with database.write() as session:
        session.execute(sa.update(IdempotencyRow).values(created_at=IdempotencyRow.created_at - seconds))


def test_a_request_of_many_transactions_keeps_its_key(database: Database) -> None:
    """A repeated one takes the key over only of a request that was lost."""
    begin(database)
    age(database, idempotency.IN_FLIGHT_SECONDS + 1)
    with database.write() as session:
        idempotency.renew(session, "a", "k")
    with pytest.raises(IdempotencyInFlight):
        begin(database)


def test_the_stored_answer_is_given_again(database: Database) -> None:
    assert begin(database) is None
    finish(database)
    assert begin(database) == StoredAnswer(202, {"body": "answer"})
    assert begin(database, key="other") is None


def test_a_request_in_flight_is_said_so(database: Database) -> None:
    begin(database)
    with pytest.raises(IdempotencyInFlight):
        begin(database)


def test_another_body_is_refused_before_and_after_the_answer(database: Database) -> None:
    begin(database)
    with pytest.raises(IdempotencyMismatch):
        begin(database, digest="other")
    finish(database)
    with pytest.raises(IdempotencyMismatch):
        begin(database, digest="other")


def test_a_refused_request_frees_its_key_and_an_answered_one_does_not(database: Database) -> None:
    begin(database)
    with database.write() as session:
        idempotency.abandon(session, "a", "k")
    assert begin(database, digest="other") is None
    finish(database)
    with database.write() as session:
        idempotency.abandon(session, "a", "k")
    assert begin(database, digest="other") is not None


def test_a_key_whose_process_died_is_taken_over_and_answered_once(database: Database) -> None:
    begin(database)
    age(database, idempotency.IN_FLIGHT_SECONDS + 1)
    assert begin(database) is None
    with pytest.raises(IdempotencyInFlight):
        begin(database)
    finish(database, body="second")
    with pytest.raises(IdempotencyInFlight):
        finish(database, body="the first was slow, not dead")
    assert begin(database) == StoredAnswer(202, {"body": "second"})


def test_answers_are_kept_for_a_day(database: Database) -> None:
    begin(database)
    finish(database)
    age(database, idempotency.KEEP_SECONDS - 60)
    assert begin(database) is not None
    age(database, 61)
    assert begin(database, digest="other") is None


def test_of_many_at_once_one_has_the_key(database: Database) -> None:
    outcomes: list[str] = []

    def ask() -> None:
        try:
            outcomes.append("mine" if begin(database) is None else "stored")
        except IdempotencyInFlight:
            outcomes.append("in flight")

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["in flight"] * 11 + ["mine"]
