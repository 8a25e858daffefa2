"""Queries about samples: claims, leases, commits and lists.

A claim raises the sample's lease token. A commit with an older token changes nothing and raises LeaseLost, so
a worker that was taken for dead does no harm.
"""

from storage.samples.announced import abandon
from storage.samples.claims import claim, is_any_pending, next_input
from storage.samples.commits import SampleResult, committed, complete, fail
from storage.samples.insertion import NewSample, insert, next_position
from storage.samples.leases import LeasedSample, give_back, lock_jobs, release, renew
from storage.samples.lists import find, get, resource
from storage.samples.lost_workers import ALONE_AFTER_ATTEMPTS, MAX_ATTEMPTS, give_up

__all__ = [
    "ALONE_AFTER_ATTEMPTS",
    "MAX_ATTEMPTS",
    "LeasedSample",
    "NewSample",
    "SampleResult",
    "abandon",
    "claim",
    "committed",
    "complete",
    "fail",
    "find",
    "get",
    "give_back",
    "give_up",
    "insert",
    "is_any_pending",
    "lock_jobs",
    "next_input",
    "next_position",
    "release",
    "renew",
    "resource",
]
