"""Keyset pages: every row once, in a stable order, whatever is added meanwhile."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from actograph.contract.errors import InvalidRequest
from storage.index import pages
from storage.index.database import Database
from storage.index.pages import Order
from storage.jobs import jobs
from storage.queue import view
from storage.tables.models import JobRow

Submit = Callable[..., str]


def walk(database: Database, order: Order, limit: int) -> list[str]:
    seen: list[str] = []
    after = None
    while True:
        with database.read() as session:
            rows, has_more = jobs.find(session, after=after, limit=limit, order=order)
            page = pages.page(rows, has_more, lambda row: view.job(session, row))
        seen += [job.id for job in page.data]
        assert page.first_id == (page.data[0].id if page.data else None)
        if not page.has_more:
            return seen
        assert len(page.data) == limit
        after = page.last_id


@pytest.mark.parametrize("same_moment", [False, True])
def test_every_row_comes_once_in_both_orders(
    database: Database, submit: Submit, same_moment: bool, subtests: pytest.Subtests
) -> None:
    """Rows of the same moment are told apart by their ids."""
    made = [submit() for _ in range(7)]
    if same_moment:
        made.sort()
        with database.write() as session:
            session.execute(sa.update(JobRow).values(created_at=1e9 / 3))
    for limit in (1, 2, 3, 7, 100):
        with subtests.test(limit=limit):
            assert walk(database, "asc", limit) == made
            assert walk(database, "desc", limit) == made[::-1]


def test_a_row_that_is_added_meanwhile_moves_nothing(database: Database, submit: Submit) -> None:
    made = [submit() for _ in range(4)]
    with database.read() as session:
        first, _ = jobs.find(session, limit=2)
    submit()
    with database.read() as session:
        rest, has_more = jobs.find(session, limit=5, after=first[-1].id)
    assert [r.id for r in (*first, *rest)] == made[::-1]
    assert not has_more


def test_an_unknown_after_is_refused(database: Database) -> None:
    with pytest.raises(InvalidRequest, match="no item"), database.read() as session:
        jobs.find(session, after="job_" + "0" * 32)
