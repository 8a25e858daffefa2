"""`client.store`: the artifact store."""

from collections.abc import Iterator
from typing import TypeVar

from actograph.client.queries import LONG_SECONDS
from actograph.client.retries import Params
from actograph.client.transport import Resource
from actograph.contract import resources

P = TypeVar("P", resources.StoreGc, resources.StoreVerification)


class Store(Resource):
    """Measure, clean and verify the store."""

    def usage(self) -> resources.StoreUsage:
        """Return stored bytes per owner, and the quotas."""
        return self._transport.call(resources.StoreUsage, "GET", "/v1/activations/stats")

    def collect_garbage(
        self, *, dry_run: bool = False, after: str | None = None
    ) -> Iterator[resources.StoreGc]:
        """Delete unused files, one page per iteration; see docs/operate/storage.md.

        Args:
            dry_run: report only.
            after: `next` of an earlier page, to continue from there.
        """
        return self._chain("/v1/store/gc", resources.StoreGc, {"dry_run": dry_run}, after)

    def verify(
        self, *, sample: float = 1.0, seed: int = 0, after: str | None = None
    ) -> Iterator[resources.StoreVerification]:
        """Compare the store with the index, one page per iteration.

        Args:
            sample: share of sessions and files whose bytes are read.
            seed: selects the share.
            after: `next` of an earlier page with the same sample and seed, to continue from there.
        """
        params: Params = {"sample": sample, "seed": seed}
        return self._chain("/v1/store/verify", resources.StoreVerification, params, after)

    def _chain(self, path: str, form: type[P], params: Params, after: str | None) -> Iterator[P]:
        while True:
            page = self._transport.call(
                form, "POST", path, params={**params, "after": after}, timeout=LONG_SECONDS
            )
            yield page
            after = page.next
            if after is None:
                return
