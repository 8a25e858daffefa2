"""HTTP requests with retries, typed answers, lists read page by page, and streams."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from time import sleep
from typing import Any, BinaryIO, ClassVar, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, PrivateAttr, ValidationError
from typing_extensions import override

from actograph.client.errors import ApiError, ServiceUnreachable, UnexpectedAnswer, from_response
from actograph.contract.base import ListPage, as_json
from actograph.contract.errors import IdempotencyInFlight, InvalidRequest, NotFound
from actograph.service_urls import is_loopback

M = TypeVar("M", bound=BaseModel)
Params = Mapping[str, Any]

RETRY_STATUS = frozenset({429, 502, 503, 504})
FIRST_DELAY_SECONDS = 0.2
LONGEST_DELAY_SECONDS = 10.0
CONNECT_SECONDS = 5.0
#: timeout of requests that read or change many sessions
LONG_SECONDS = 3600.0
PAGE_SIZE = 100


def path_of(base: str, *parts: str) -> str:
    """Join a path; each part is quoted, and `.` and `..` are refused."""
    if any(part in ("", ".", "..") for part in parts):
        raise InvalidRequest(f"{parts!r} is not a valid id or name")
    return "/".join([base, *(quote(part, safe="") for part in parts)])


def parse(form: type[M], text: str | bytes, client: Any = None) -> M:
    """Parse JSON as a `form`; handles in it are bound to `client`. Raises UnexpectedAnswer."""
    try:
        return form.model_validate_json(text, context=client)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        if first["type"] == "json_invalid":
            raise UnexpectedAnswer("the answer is not JSON; is this an Actograph service?") from error
        name = form.__name__.partition("[")[0]  # generic models are called ListPage[...]
        place = ".".join(map(str, first["loc"])) or "body"
        raise UnexpectedAnswer(
            f"the service's {name} does not match this version of the client ({place}: {first['msg']}); "
            "do client and service have the same version?"
        ) from error


def event_data(response: httpx.Response) -> Iterator[str]:
    """Yield the data of each server-sent event; ids and names are in the data too."""
    rest, data = "", list[str]()
    for text in response.iter_text():
        *lines, rest = (rest + text).split("\n")
        for line in lines:
            if line.startswith("data:"):
                data.append(line.removeprefix("data:").removeprefix(" "))
            elif not line and data:
                yield "\n".join(data)
                data = []


def backoff(tries: int) -> float:
    """Seconds to wait after `tries` + 1 failures: doubling, with jitter."""
    longest = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0**tries)
    return longest * random.uniform(0.5, 1.0)


def _refuse(response: httpx.Response) -> None:
    """Raise ApiError for a status of 400 or above."""
    if response.status_code >= 400:
        response.read()
        raise from_response(response)


class Listing(Iterator[M]):
    """Items of a list. Pages are fetched as it is read, once."""

    def __init__(self, items: Iterator[M]) -> None:
        self._items = items

    @override
    def __next__(self) -> M:
        return next(self._items)

    def first(self) -> M | None:
        """Return the next item; None if there is none."""
        return next(self, None)

    def one(self) -> M:
        """Return the only item. Raises NotFound if there is none, and InvalidRequest if there are several."""
        found = list(islice(self, 2))
        if not found:
            raise NotFound("nothing matches")
        if len(found) > 1:
            raise InvalidRequest("several items match; narrow the filters, or use first()")
        return found[0]


class Transport:
    """One connection pool to one service."""

    def __init__(self, base_url: str, api_key: str, client: Any, *, timeout: float, retries: int) -> None:
        """`client`: what handles in answers are bound to."""
        try:
            url = httpx.URL(base_url)
        except httpx.InvalidURL:
            url = httpx.URL()
        if url.scheme not in ("http", "https") or not url.host:
            raise InvalidRequest(
                f"{base_url!r} is not the URL of a service; use one such as http://127.0.0.1:8420"
            )
        self.retries = retries
        self._base_url, self._client = base_url, client
        self._local = is_loopback(url.host)
        try:
            self._http = httpx.Client(
                base_url=base_url,
                headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
                timeout=httpx.Timeout(timeout, connect=min(timeout, CONNECT_SECONDS)),
                # presigned redirects lead to the object store; httpx drops the key on another origin
                follow_redirects=True,
                event_hooks={"response": [_refuse]},
                trust_env=not self._local,  # no proxy for loopback
            )
        except (ImportError, ValueError, OSError) as error:
            raise InvalidRequest(
                f"the environment's proxy or certificates (ALL_PROXY, SSL_CERT_FILE, ...): {error}"
            ) from error

    def close(self) -> None:
        self._http.close()

    def call(self, form: type[M], method: str, path: str, **options: Any) -> M:
        """Send a request and return its answer as a `form`. Takes the options of `request`."""
        return parse(form, self.request(method, path, **options).content, self._client)

    def items(self, form: type[M], path: str, params: Params | None = None) -> "Listing[M]":
        """Return the items of a list."""
        return Listing(self._pages(form, path, params))

    def _pages(self, form: type[M], path: str, params: Params | None) -> Iterator[M]:
        after: str | None = None
        while True:
            page: ListPage[M] = self.call(
                ListPage[form],  # type: ignore[valid-type]
                "GET", path, params={**(params or {}), "after": after},
            )  # fmt: skip
            yield from page.data
            if not page.has_more or page.last_id is None or page.last_id == after:
                return
            after = page.last_id

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        repeatable: bool = True,
        timeout: float | None = None,
        **options: Any,
    ) -> httpx.Response:
        """Send a request, with retries, and return its answer, with a status below 400.

        Args:
            repeatable: whether to send the request again after a lost answer or a status of RETRY_STATUS.
            options: `json`, `headers`, `data` and `files` of httpx.

        Raises:
            ApiError: the service refused.
            ServiceUnreachable: no connection, or it was lost.
        """
        self._require_open()
        options |= _as_sent(params, options)
        if timeout is not None:
            options["timeout"] = timeout
        tries = 0
        while True:
            try:
                return self._http.request(method, path, **options)
            except httpx.TransportError as error:
                # a request without a connection was not sent
                again, delay = repeatable or isinstance(error, httpx.ConnectError | httpx.ConnectTimeout), 0.0
                failure: ApiError | ServiceUnreachable = self._unreachable(error)
            except ApiError as refusal:
                # an earlier try with the same Idempotency-Key may be running still
                again = refusal.status in RETRY_STATUS or refusal.code == IdempotencyInFlight.code
                again, delay, failure = again and repeatable, refusal.retry_after, refusal
            if not again or tries >= self.retries:
                raise failure
            sleep(max(backoff(tries), min(delay, LONGEST_DELAY_SECONDS)))
            tries += 1

    def repeat(self, work: Callable[[], None]) -> None:
        """Call `work`, and again after a lost connection. Raises ServiceUnreachable after too many."""
        for tries in range(self.retries + 1):
            try:
                return work()
            except ServiceUnreachable:
                if tries == self.retries:
                    raise
                sleep(backoff(tries))

    @contextmanager
    def stream(
        self,
        method: str,
        path: str,
        *,
        params: Params | None = None,
        read_timeout: float | None = None,
        **options: Any,
    ) -> Iterator[httpx.Response]:
        """Send a request once and yield its answer, whose body the caller reads.

        Raises:
            ApiError: the service refused.
            ServiceUnreachable: no connection, or it was lost, also while the body is read.
        """
        self._require_open()
        options |= _as_sent(params, options)
        if read_timeout is not None:
            options["timeout"] = httpx.Timeout(CONNECT_SECONDS, read=read_timeout)
        try:
            with self._http.stream(method, path, **options) as response:
                yield response
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def download(self, path: str, out: BinaryIO, **options: Any) -> None:
        """Write a body to `out` while it arrives. Takes the options, and raises the errors, of `stream`."""
        with self.stream("GET", path, **options) as response:
            for chunk in response.iter_bytes():
                out.write(chunk)

    def _require_open(self) -> None:
        """Raises InvalidRequest after `close`; handles and tensors send requests when they are read."""
        if self._http.is_closed:
            raise InvalidRequest("the client is closed; read results and tensors before its `with` ends")

    def _unreachable(self, error: httpx.TransportError) -> ServiceUnreachable:
        where = f"the service at {self._base_url}"
        if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout | httpx.PoolTimeout):
            return ServiceUnreachable(f"no answer from {where} in time")
        if isinstance(error, httpx.ProtocolError | httpx.ReadError | httpx.WriteError):
            return ServiceUnreachable(f"{where} closed the connection: {error}")
        hint = "start it with: actograph up" if self._local else "check the address and proxies"
        return ServiceUnreachable(f"cannot reach {where} ({error}); {hint}")


def _as_sent(params: Params | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters without the None values, and the body of `json` without models and arrays."""
    stated = {name: value for name, value in (params or {}).items() if value is not None}
    return {"params": stated} | ({"json": as_json(options["json"])} if "json" in options else {})


class APIResource:
    """A group of calls under one path, such as `client.models`."""

    _path: ClassVar[str]

    def __init_subclass__(cls, path: str) -> None:
        cls._path = path

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def _call(self, form: type[M], method: str, *parts: str, **options: Any) -> M:
        """Call `_path`/parts. Takes the options of `Transport.request`."""
        return self._transport.call(form, method, path_of(self._path, *parts), **options)

    def _items(self, form: type[M], *parts: str, **params: Any) -> "Listing[M]":
        return self._transport.items(form, path_of(self._path, *parts), params)


class Handle(BaseModel):
    """An answer with calls of its own, bound to the client that received it."""

    _client: Any = PrivateAttr()

    @override
    def model_post_init(self, context: Any, /) -> None:
        self._client = context
