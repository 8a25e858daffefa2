"""Delivery of due webhooks.

Clients name the targets. So each attempt resolves the host itself, refuses private addresses that the
operator did not name, connects to the checked address, follows no redirect and reads no body. Signatures
are those of Standard Webhooks,
https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

import asyncio
import base64
import binascii
import hmac
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

import httpx

from actograph import __version__
from actograph.settings import Settings
from api.submission.webhook_targets import addresses_of, refused_host
from storage.index.database import Database, now
from storage.jobs import webhooks
from storage.tables.models import WebhookRow

log = logging.getLogger(__name__)

SECRET_PREFIX = "whsec_"
AT_ONCE = 8
#: status of a receiver that wants no more webhooks
GONE = 410


def sign(secret: str, webhook_id: str, timestamp: int, payload: bytes) -> str:
    """Compute the value of `webhook-signature`.

    Args:
        secret: `whsec_` and the key in base64, or the key as text.

    Raises:
        ValueError: the part after `whsec_` is not base64.
    """
    key = secret.encode()
    if secret.startswith(SECRET_PREFIX):
        try:
            key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except binascii.Error:
            raise ValueError("ACTOGRAPH_WEBHOOK_SECRET is not base64 after whsec_") from None
    signed = f"{webhook_id}.{timestamp}.".encode() + payload
    return "v1," + base64.b64encode(hmac.digest(key, signed, sha256)).decode()


@dataclass(frozen=True, kw_only=True)
class _Result:
    status_code: int | None = None
    #: reason of a failure; None if delivered
    reason: str | None = None
    is_final: bool = False


class WebhookSender:
    """Delivers due webhooks."""

    def __init__(self, settings: Settings, database: Database, stop: threading.Event) -> None:
        self._settings = settings
        self._database = database
        self._stop = stop

    def deliver_due(self) -> int:
        """Make every due attempt; returns their number.

        Raises:
            sqlalchemy.exc.SQLAlchemyError: the database does not answer.
        """
        made = 0
        while not self._stop.is_set():
            with self._database.write() as session:
                due = webhooks.claim(
                    session, limit=AT_ONCE, retry_seconds=self._settings.webhook_retry_seconds
                )
                moment = now(session)
            if not due:
                break
            results = asyncio.run(self._attempt_all(due, int(moment)))
            for delivery, result in zip(due, results, strict=True):
                self._note(delivery, result)
            made += len(due)
        return made

    async def _attempt_all(self, due: Sequence[WebhookRow], timestamp: int) -> list[_Result]:
        """Make several attempts at once, each with a timeout."""
        # a proxy would resolve the host again
        async with httpx.AsyncClient(timeout=None, follow_redirects=False, trust_env=False) as client:
            return await asyncio.gather(*(self._attempt(client, one, timestamp) for one in due))

    async def _attempt(self, client: httpx.AsyncClient, delivery: WebhookRow, timestamp: int) -> _Result:
        settings = self._settings
        url = settings.webhook_url if delivery.url is None else delivery.url
        if not url or not settings.webhook_secret:
            return _Result(reason="webhooks were turned off", is_final=True)
        if delivery.url is not None and (refused := refused_host(url, settings.webhook_hosts)) is not None:
            return _Result(reason=refused, is_final=True)
        payload = delivery.payload.encode()
        try:
            headers = {
                "content-type": "application/json",
                "user-agent": f"actograph/{__version__}",
                "webhook-id": delivery.id,
                "webhook-timestamp": str(timestamp),
                "webhook-signature": sign(settings.webhook_secret, delivery.id, timestamp, payload),
            }
            # a slow answer must not block the next webhooks
            async with asyncio.timeout(settings.webhook_timeout_seconds):
                # the operator's own URL may have any address
                allowed = None if delivery.url is None else settings.webhook_hosts
                addresses = await asyncio.to_thread(addresses_of, url, allowed)
                status = await _post(client, url, addresses, headers, payload)
        except TimeoutError:
            return _Result(reason=f"no answer within {settings.webhook_timeout_seconds:g} s")
        except (ValueError, OSError, httpx.HTTPError, httpx.InvalidURL) as error:
            return _Result(reason=f"{type(error).__name__}: {error}"[:500])
        if 200 <= status < 300:
            return _Result(status_code=status)
        what = "answers with a redirect, which is not followed" if 300 <= status < 400 else "answers"
        return _Result(reason=f"the receiver {what}: HTTP {status}", is_final=status == GONE)

    def _note(self, delivery: WebhookRow, result: _Result) -> None:
        with self._database.write() as session:
            if result.reason is None:
                webhooks.delivered(session, delivery, result.status_code or 0)
                return
            gives_up = result.is_final or delivery.attempts >= self._settings.webhook_max_attempts
            webhooks.failed(session, delivery, result.reason, gives_up=gives_up)
        if gives_up:
            log.warning("webhook %s of job %s is given up: %s", delivery.id, delivery.job_id, result.reason)


async def _post(
    client: httpx.AsyncClient, url: str, addresses: Sequence[str], headers: dict[str, str], payload: bytes
) -> int:
    """POST to the first address that accepts a connection; returns the status."""
    target = httpx.URL(url)
    host = target.netloc.decode("ascii")
    refused: httpx.HTTPError | None = None
    for address in addresses:
        request = client.build_request(
            "POST",
            target.copy_with(host=address),
            headers={**headers, "host": host},
            content=payload,
            # check the certificate against the name, not the address
            extensions={"sni_hostname": target.host},
        )
        try:
            answer = await client.send(request, stream=True)
        except httpx.ConnectError as error:
            refused = error
            continue
        await answer.aclose()
        return answer.status_code
    assert refused is not None
    raise refused
