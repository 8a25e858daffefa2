"""Requests with retries: what may be repeated is repeated, everything else is reported at once."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from actograph.client.aio.runtime import sleep
from actograph.client.errors import from_response, unreachable
from actograph.client.transport import (
    CONNECT_SECONDS,
    IN_FLIGHT,
    RETRY_STATUS,
    Params,
    backoff,
    environment_at_fault,
    retry_after,
    stated,
    trusts_environment,
)


class Transport:
    """One connection pool to one service."""

    def __init__(self, base_url: str, api_key: str, *, timeout: float, retries: int) -> None:
        self.base_url = base_url.rstrip("/")
        self.retries = retries
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        trust_env = trusts_environment(self.base_url)
        with environment_at_fault():
            self._http = httpx.AsyncClient(
                base_url=self.base_url,
                headers=headers,
                timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
                # presigned redirects lead to the object store; httpx drops our key on another origin
                follow_redirects=True,
                trust_env=trust_env,
            )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = True,
        timeout: float | None = None,
    ) -> httpx.Response:
        """Send a request and return its answer, which has a status below 400.

        Args:
            repeatable: whether the same request may be sent again when its answer was lost, or the
                service said that it cannot serve just now (502, 503, 504).

        Raises:
            ApiError: the service refused.
            ServiceUnreachable: no connection, or it broke off.
        """
        options: dict[str, Any] = {"params": stated(params), "json": json, "headers": headers}
        if timeout is not None:
            options["timeout"] = timeout
        return await self.attempt(lambda: self._http.request(method, path, **options), repeatable=repeatable)

    async def attempt(
        self, send: Callable[[], Awaitable[httpx.Response]], *, repeatable: bool
    ) -> httpx.Response:
        """`request` for a caller that builds the request itself; `send` is called once per try."""
        tries = 0
        while True:
            delay = backoff(tries)
            try:
                response = await send()
            except httpx.TransportError as error:
                # what could not connect was not sent, and may be repeated whatever it is
                safe = repeatable or isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                if not safe or tries >= self.retries:
                    raise unreachable(self.base_url, error) from error
            else:
                if response.status_code < 400:
                    return response
                error_answer = from_response(response)
                again = response.status_code in RETRY_STATUS or error_answer.code == IN_FLIGHT
                if not (repeatable and again) or tries >= self.retries:
                    raise error_answer
                delay = max(delay, retry_after(response))
            tries += 1
            await sleep(delay)

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        read_timeout: float | None = None,
        accept: frozenset[int] = frozenset(),
        method: str = "GET",
        json: Any = None,
    ) -> AsyncIterator[httpx.Response]:
        """A request whose answer is read by the caller; tried once.

        Args:
            accept: statuses of 400 and above that are answers and not errors.

        Raises:
            ApiError: the service refused.
            ServiceUnreachable: no connection, or it broke off, also while the body is read.
        """
        options: dict[str, Any] = {"headers": headers, "json": json}
        if read_timeout is not None:
            options["timeout"] = httpx.Timeout(CONNECT_SECONDS, read=read_timeout)
        try:
            async with self._http.stream(method, path, **options) as response:
                if response.status_code >= 400 and response.status_code not in accept:
                    await response.aread()
                    raise from_response(response)
                yield response
        except httpx.TransportError as error:
            raise unreachable(self.base_url, error) from error

    async def post_form(
        self, path: str, *, data: Mapping[str, str], files: Callable[[], Mapping[str, Any]]
    ) -> httpx.Response:
        """A multipart POST; `files` opens the parts anew for each try. Raises as `request` does."""
        return await self.attempt(
            lambda: self._http.post(path, data=dict(data), files=dict(files())), repeatable=False
        )
