"""Both limits at once, each way round: the nearer one counts, and each stops what it is the limit of."""

import pytest

from actograph.contract.errors import QuotaExceeded
from storage.accounts.quotas import Quotas

#: 100 bytes in all; what was stored before there were owners counts too
USED = {"ann": 60, "bob": 30, "": 10}


def quotas(total: int = 0, owner: int = 0, **own: int) -> Quotas:
    return Quotas(total_limit=total, owner_limit=owner, own_limits=own, used=USED)


def test_the_nearer_limit_says_what_is_left(subtests: pytest.Subtests) -> None:
    for limits, ann, bob, new in [
        (quotas(), None, None, None),
        (quotas(total=130), 30, 30, 30),
        (quotas(owner=75), 15, 45, 75),
        # both: the store's room is less than ann's, ann's less than the store's
        (quotas(total=105, owner=90), 5, 5, 5),
        (quotas(total=190, owner=75), 15, 45, 75),
        (quotas(total=130, owner=70), 10, 30, 30),
        # a key's own limit stands in place of the owners', larger or smaller
        (quotas(total=190, owner=75, ann=62), 2, 45, 75),
        (quotas(total=190, owner=75, ann=500), 90, 45, 75),
        (quotas(total=130, owner=75, ann=500), 30, 30, 30),
        # used up: there is no room, and never less than none
        (quotas(total=90, owner=500), 0, 0, 0),
        (quotas(total=500, owner=50), 0, 20, 50),
        (quotas(total=90, owner=50), 0, 0, 0),
        # 0 is no limit
        (quotas(total=0, owner=75, bob=0), 15, None, 75),
    ]:
        with subtests.test(limits=limits, ann=ann, bob=bob, new=new):
            assert [limits.left(owner) for owner in ("ann", "bob", "new")] == [ann, bob, new]
            for owner, left in (("ann", ann), ("bob", bob), ("new", new)):
                limits.require(owner, 10**9 if left is None else left, "a file")
                if left is not None:
                    with pytest.raises(QuotaExceeded, match=rf"needed {left + 1} bytes, available {left} "):
                        limits.require(owner, left + 1, "a file")


def test_each_limit_stops_what_it_is_the_limit_of(subtests: pytest.Subtests) -> None:
    for limits, is_full, paused in [
        (quotas(total=101, owner=61), False, []),
        (quotas(total=100, owner=61), True, []),
        (quotas(total=101, owner=60), False, ["ann"]),
        (quotas(total=100, owner=60), True, ["ann"]),
        (quotas(total=500, owner=30), False, ["ann", "bob"]),
        (quotas(total=500, owner=30, ann=61), False, ["bob"]),
        (quotas(total=500, owner=61, bob=30), False, ["bob"]),
        (quotas(owner=30, ann=0, bob=0), False, []),
        (quotas(total=99), True, []),
    ]:
        with subtests.test(limits=limits, is_full=is_full, paused=paused):
            assert (limits.pause() is not None) == is_full
            assert limits.paused_owners() == paused
            if is_full:
                assert "ACTOGRAPH_STORE_QUOTA_BYTES" in str(limits.pause())
            for owner in paused:
                own = (
                    "quota_bytes of its API key"
                    if owner in limits.own_limits
                    else "ACTOGRAPH_OWNER_QUOTA_BYTES"
                )
                assert own in str(limits.owner_pause(owner))
            # what belongs to nobody is in the total alone
            assert limits.owner_pause("") is None and limits.limit_of("") == 0
