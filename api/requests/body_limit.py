"""Limits on requests: size and pace of their bodies, the memory of all of them together, places in lanes."""

import asyncio
from collections import Counter
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actograph.contract.errors import (
    ActographError,
    PayloadTooLarge,
    RequestTimeout,
    ServiceBusy,
    StorageFull,
)
from actograph.settings import Settings
from api.problems.errors import actograph_problem
from api.requests.lanes import Lane, Lanes, takes_body
from storage.queue import pause

UPLOAD_PATH = "/v1/files"
#: what a multipart body adds to the file in it
MULTIPART_OVERHEAD = 1 << 20
#: routes that take whole lists of inputs have the setting alone as their limit
_INPUT_PATHS = frozenset({"/v1/jobs", "/v1/estimate"})
_ROUTE_BYTES = {
    "/v1/completions": 24 << 20,
    "/v1/interventions": 24 << 20,
    "/v1/chat/completions": 8 << 20,
}
_OTHER_BYTES = 4 << 20
#: a smaller body is not counted against the memory that all share
FREE_BYTES = 64 << 10
#: memory that remains for others while one owner's bodies take the largest size
SPARE_BYTES = 32 << 20
#: bytes of an upload between two looks at the free disk
LOOK_BYTES = 8 << 20
#: a body may take so long, and a second more for each `LEAST_PACE` bytes
BODY_SECONDS = 30.0
LEAST_PACE = 256 << 10


class BodyMemory:
    """Bytes of bodies that this process holds, for all and for each owner. For the event loop alone."""

    def __init__(self, most: int, most_of_owner: int) -> None:
        self._free = most
        self._most_of_owner = most_of_owner
        self._held: Counter[str] = Counter()

    def take(self, owner: str, size: int) -> None:
        """Raises ServiceBusy if other bodies hold too much."""
        if size > self._free or self._held[owner] + size > self._most_of_owner:
            raise ServiceBusy(
                "other requests send large bodies at the moment; send this one again in a moment"
            )
        self._free -= size
        self._held[owner] += size

    def give_back(self, owner: str, size: int) -> None:
        self._free += size
        self._held[owner] -= size
        if not self._held[owner]:
            del self._held[owner]


class BodyLimit:
    """ASGI middleware. It refuses a body that is too large, too slow, or too much for this process's memory.

    The limit also holds for bodies without a Content-Length. The memory of a JSON body counts until its
    request has been answered; an upload goes to disk.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        largest = settings.max_body_bytes
        self._memory = BodyMemory(largest + SPARE_BYTES, largest)
        self._lanes = Lanes()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        too_large = self._too_large(scope["path"])
        declared = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > self._limit(scope["path"]):
            await actograph_problem(too_large, scope["path"])(scope, receive, send)
            return
        is_upload = scope["path"] == UPLOAD_PATH and scope["method"] == "POST"
        if is_upload:
            try:
                self._require_room(scope, int(declared) if declared.isdigit() else 0)
            except StorageFull as error:
                await actograph_problem(error, scope["path"])(scope, receive, send)
                return
        body = _Body(scope, receive, None if scope["path"] == UPLOAD_PATH else self._memory)
        if is_upload:
            body.require_room = lambda: self._require_room(scope)
        body.limit, body.too_large = self._limit(scope["path"]), too_large
        lane = self._lanes.of(scope["method"], scope["path"])
        if lane is not None and takes_body(scope["method"], scope["path"]):
            body.lane = lane
        elif lane is not None:
            try:
                await body.enter(lane)
            except ServiceBusy as error:
                await actograph_problem(error, scope["path"])(scope, receive, send)
                return
        started = False

        async def guarded(message: Message) -> None:
            # The form parser turns what `receive` raises into a 400; the answer is the refusal all the same.
            nonlocal started
            if body.refusal is not None and not started:
                if message["type"] == "http.response.start":
                    await actograph_problem(body.refusal, scope["path"])(scope, receive, send)
                return
            started = True
            await send(message)

        try:
            await self._app(scope, body.receive, guarded)
        finally:
            body.give_back()

    def _require_room(self, scope: Scope, size: int = 0) -> None:
        """Raises StorageFull if the disk is at its floor, or would be with `size` bytes more."""
        services = getattr(scope["app"].state, "services", None) if "app" in scope else None
        if services is not None:
            pause.require_room(services.store, self._settings.disk_floor_bytes, size)

    def _limit(self, path: str) -> int:
        if path == UPLOAD_PATH:
            return self._settings.max_upload_bytes + MULTIPART_OVERHEAD
        if path in _INPUT_PATHS:
            return self._settings.max_body_bytes
        return min(self._settings.max_body_bytes, _ROUTE_BYTES.get(path, _OTHER_BYTES))

    def _too_large(self, path: str) -> PayloadTooLarge:
        if path == UPLOAD_PATH:
            most, why = self._settings.max_upload_bytes, "ACTOGRAPH_MAX_UPLOAD_BYTES"
        else:
            most, why = self._limit(path), "the most that this route takes"
            if most == self._settings.max_body_bytes:
                why = "ACTOGRAPH_MAX_BODY_BYTES"
        return PayloadTooLarge(f"the request body is larger than {most} bytes ({why})")


class _Body:
    """One request's body while it is received. Without `memory` its bytes are not counted."""

    limit: int
    too_large: PayloadTooLarge
    #: entered when the body is complete
    lane: Lane | None = None

    def __init__(self, scope: Scope, receive: Receive, memory: BodyMemory | None) -> None:
        access = scope.get("state", {}).get("access")
        self._owner = access.owner if access is not None else ""
        self._receive = receive
        self._memory = memory
        self._began = asyncio.get_running_loop().time()
        self._seen = self._counted = 0
        self._is_complete = False
        #: raises StorageFull when the disk has reached its floor
        self.require_room: Callable[[], None] | None = None
        self._next_look = 0
        self._entered: Lane | None = None
        self.refusal: ActographError | None = None

    async def receive(self) -> Message:
        """The next message. Raises what `refusal` is from then on."""
        try:
            return await self._next()
        except (PayloadTooLarge, ServiceBusy, RequestTimeout, StorageFull) as error:
            self.refusal = error
            raise

    async def _next(self) -> Message:
        if self._is_complete or self._memory is None:
            message = await self._receive()
        else:
            try:
                async with asyncio.timeout_at(self._began + BODY_SECONDS + self._seen / LEAST_PACE):
                    message = await self._receive()
            except TimeoutError:
                raise RequestTimeout from None
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            self._is_complete = not message.get("more_body", False)
            if self._seen > self.limit:
                raise self.too_large
            if self.require_room is not None and self._seen >= self._next_look:
                self._next_look = self._seen + LOOK_BYTES
                self.require_room()
            if self._memory is not None and self._seen > FREE_BYTES:
                self._memory.take(self._owner, self._seen - self._counted)
                self._counted = self._seen
            if self._is_complete and self.lane is not None and self._entered is None:
                await self.enter(self.lane)
        return message

    async def enter(self, lane: Lane) -> None:
        """Take a place in a lane. Raises ServiceBusy."""
        await lane.enter(self._owner)
        self._entered = lane

    def give_back(self) -> None:
        """Free the memory and the place."""
        if self._entered is not None:
            self._entered.leave(self._owner)
        if self._memory is not None and self._counted:
            self._memory.give_back(self._owner, self._counted)
