"""HTTP requests with retries, typed answers, and lists read page by page."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import sleep
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel

from actograph.client.answers import read, validate
from actograph.client.errors import ServiceUnreachable, from_response, unreachable
from actograph.client.retries import (
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
from actograph.contract.resources import ListPage

M = TypeVar("M", bound=BaseModel)


class Transport:
    """One connection pool to one service."""

    def __init__(self, base_url: str, api_key: str, *, timeout: float, retries: int) -> None:
        self.base_url = base_url.rstrip("/")
        self.retries = retries
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        trust_env = trusts_environment(self.base_url)
        with environment_at_fault():
            self._http = httpx.Client(
                base_url=self.base_url,
                headers=headers,
                timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
                # presigned redirects lead to the object store; httpx drops the key on another origin
                follow_redirects=True,
                trust_env=trust_env,
            )

    def close(self) -> None:
        self._http.close()

    def call(self, form: type[M], method: str, path: str, **options: Any) -> M:
        """Send a request and return its answer as a `form`. Takes the options of `request`.

        Raises:
            UnexpectedAnswer: the answer is not a `form`; and the errors of `request`.
        """
        return read(form, self.request(method, path, **options))

    def items(self, form: type[M], path: str, params: Params | None = None) -> Iterator[M]:
        """Yield the items of a list, fetched page by page."""
        after: str | None = None
        while True:
            page = self.call(ListPage[Any], "GET", path, params={**(params or {}), "after": after})
            for item in page.data:
                yield validate(form, item)
            if not page.has_more or page.last_id is None or page.last_id == after:
                return
            after = page.last_id

    def collect(self, form: type[M], path: str) -> list[M]:
        """Return a short list as a whole."""
        items = []
        for item in self.items(form, path):
            items.append(item)
        return items

    def request(
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
        """Send a request and return its answer, with a status below 400.

        Args:
            repeatable: whether to send the request again after a lost answer, or an answer of
                502, 503 or 504.

        Raises:
            ApiError: the service refused.
            ServiceUnreachable: no connection, or it was lost.
        """
        options: dict[str, Any] = {"params": stated(params), "json": json, "headers": headers}
        if timeout is not None:
            options["timeout"] = timeout
        return self.attempt(lambda: self._http.request(method, path, **options), repeatable=repeatable)

    def attempt(self, send: Callable[[], httpx.Response], *, repeatable: bool) -> httpx.Response:
        """Call `send`, with retries."""
        tries = 0
        while True:
            delay = backoff(tries)
            try:
                response = send()
            except httpx.TransportError as error:
                # a request without a connection was not sent
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
            sleep(delay)

    def resume(self, work: Callable[[], None], arrived: Callable[[], int]) -> None:
        """Call `work` until it succeeds. Tries that made progress do not count as retries.

        Args:
            arrived: amount of data so far.

        Raises:
            ServiceUnreachable: the connection was lost too often without progress.
        """
        failures = 0
        while True:
            before = arrived()
            try:
                work()
                return
            except ServiceUnreachable:
                failures = 0 if arrived() > before else failures
                if failures >= self.retries:
                    raise
                sleep(backoff(failures))
                failures += 1

    @contextmanager
    def stream(
        self,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        read_timeout: float | None = None,
        accept: frozenset[int] = frozenset(),
        method: str = "GET",
        json: Any = None,
    ) -> Iterator[httpx.Response]:
        """Send a request once and yield its answer, whose body the caller reads.

        Args:
            accept: statuses of 400 and above that are not raised.

        Raises:
            ApiError: the service refused.
            ServiceUnreachable: no connection, or it was lost, also while the body is read.
        """
        options: dict[str, Any] = {"headers": headers, "json": json}
        if read_timeout is not None:
            options["timeout"] = httpx.Timeout(CONNECT_SECONDS, read=read_timeout)
        try:
            with self._http.stream(method, path, **options) as response:
                if response.status_code >= 400 and response.status_code not in accept:
                    response.read()
                    raise from_response(response)
                yield response
        except httpx.TransportError as error:
            raise unreachable(self.base_url, error) from error

    def post_form(
        self, path: str, *, data: Mapping[str, str], files: Callable[[], Mapping[str, Any]]
    ) -> httpx.Response:
        """Send a multipart POST; `files` opens the parts for each attempt. Raises the errors of `request`."""
        return self.attempt(
            lambda: self._http.post(path, data=dict(data), files=dict(files())), repeatable=False
        )


class Resource:
    """A group of calls of the client, such as `client.jobs`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
