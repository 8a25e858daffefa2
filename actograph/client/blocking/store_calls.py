# Made of ../aio/store_calls.py by `python actograph/client/unasync.py`: change that file, not this one.
"""The calls about the store that holds the files of sessions."""

from collections.abc import Iterator
from typing import TypeVar

from actograph.client.answers import read
from actograph.client.blocking.calls import Calls
from actograph.client.queries import LONG_SECONDS
from actograph.client.transport import Params
from actograph.contract import resources

P = TypeVar("P", resources.StoreGc, resources.StoreVerification)


class StoreCalls(Calls):
    """The store."""

    def store_usage(self) -> resources.StoreUsage:
        """What is stored, by whom, and what the quotas leave."""
        return read(resources.StoreUsage, self._transport.request("GET", "/v1/activations/stats"))

    def collect_garbage(
        self, *, dry_run: bool = False, after: str | None = None
    ) -> Iterator[resources.StoreGc]:
        """Clear the store, page after page as the iterator is read; see docs/operating.md.

        Args:
            dry_run: only say what would go.
            after: `next` of a page of an earlier call, to go on there.
        """
        return self._chain("/v1/store/gc", resources.StoreGc, {"dry_run": dry_run}, after)

    def verify_store(
        self, *, sample: float = 1.0, seed: int = 0, after: str | None = None
    ) -> Iterator[resources.StoreVerification]:
        """Compare the store with the index, page after page as the iterator is read.

        Args:
            sample: share of sessions and files whose bytes are read.
            seed: which share.
            after: `next` of a page of an earlier call with the same sample and seed, to go on there.
        """
        params: Params = {"sample": sample, "seed": seed}
        return self._chain("/v1/store/verify", resources.StoreVerification, params, after)

    def _chain(self, path: str, form: type[P], params: Params, after: str | None) -> Iterator[P]:
        while True:
            answer = self._transport.request(
                "POST", path, params={**params, "after": after}, timeout=LONG_SECONDS
            )
            page = read(form, answer)
            yield page
            after = page.next
            if after is None:
                return
