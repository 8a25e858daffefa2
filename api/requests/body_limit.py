"""Limits on requests: the size and pace of a body, the memory of all bodies, and places in lanes."""

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actograph.contract.errors import ActographError, PayloadTooLarge, RequestTimeout, ServiceBusy
from actograph.settings import Settings
from api.problems.errors import actograph_problem
from api.requests.lanes import SIZES, Lane
from api.routing import Rule, rule_of
from storage.queue import pause

UPLOAD_PATH = "/v1/files"
#: bytes that multipart encoding adds to a file
MULTIPART_OVERHEAD = 1 << 20
#: limit of paths without a body of their own
_OTHER_BYTES = 4 << 20
#: smaller bodies do not count against the shared memory
FREE_BYTES = 64 << 10
#: memory left for others while one owner's bodies have the largest size
SPARE_BYTES = 32 << 20
#: bytes of an upload between two checks of the free disk space
LOOK_BYTES = 8 << 20
#: time limit of a body; each `LEAST_PACE` bytes add a second
BODY_SECONDS = 30.0
LEAST_PACE = 256 << 10


class BodyMemory:
    """Bytes of bodies in this process, in total and per owner. For the event loop alone."""

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
    """ASGI middleware that refuses bodies that are too large, too slow or too much for the memory.

    The limits also hold without a Content-Length. A JSON body counts against the memory until its request is
    answered. An upload goes to disk.
    """

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings
        largest = settings.max_body_bytes
        self._memory = BodyMemory(largest + SPARE_BYTES, largest)
        self._lanes = {name: Lane(name, size) for name, size in SIZES.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        rule = rule_of(scope["method"], scope["path"])
        lane = self._lanes.get(rule.lane) if rule is not None else None
        body = _Body(scope, receive, *self._limit(scope["path"], rule))
        if scope["path"] != UPLOAD_PATH:
            body.memory = self._memory
        elif scope["method"] == "POST":
            body.require_room = partial(self._require_room, scope)
        try:
            body.check_declared(Headers(scope=scope).get("content-length", ""))
            if lane is not None and rule is not None and rule.takes_body:
                # a slow body must not hold a place
                body.lane = lane
            elif lane is not None:
                await body.enter(lane)
        except ActographError as error:
            await actograph_problem(error, scope["path"])(scope, receive, send)
            return
        started = False

        async def guarded(message: Message) -> None:
            # The form parser turns errors of `receive` into a 400; send the refusal instead.
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

    def _require_room(self, scope: Scope, size: int) -> None:
        """Raises StorageFull if `size` more bytes would reach the floor of the disk."""
        services = getattr(scope["app"].state, "services", None) if "app" in scope else None
        if services is not None:
            pause.require_room(services.store, self._settings.disk_floor_bytes, size)

    def _limit(self, path: str, rule: Rule | None) -> tuple[int, PayloadTooLarge]:
        """Most bytes of a body, and the refusal of a larger one."""
        shown, source = self._settings.max_body_bytes, "ACTOGRAPH_MAX_BODY_BYTES"
        most = rule.body.max_bytes if rule is not None and rule.body is not None else _OTHER_BYTES
        overhead = 0
        if path == UPLOAD_PATH:
            shown, source = self._settings.max_upload_bytes, "ACTOGRAPH_MAX_UPLOAD_BYTES"
            overhead = MULTIPART_OVERHEAD
        elif most is not None and most < shown:
            shown, source = most, "the limit of this route"
        return shown + overhead, PayloadTooLarge(f"the request body is larger than {shown} bytes ({source})")


class _Body:
    """The body of one request while it is received."""

    #: None if its bytes do not count
    memory: BodyMemory | None = None
    #: lane to enter when the body is complete
    lane: Lane | None = None
    #: raises StorageFull if this number of further bytes would reach the floor of the disk
    require_room: Callable[[int], None] | None = None
    #: error of a refused body
    refusal: ActographError | None = None

    def __init__(self, scope: Scope, receive: Receive, limit: int, too_large: PayloadTooLarge) -> None:
        access = scope.get("state", {}).get("access")
        self._owner = access.owner if access is not None else ""
        self._receive = receive
        self._limit, self._too_large = limit, too_large
        self._began = asyncio.get_running_loop().time()
        self._seen = self._counted = 0
        self._is_complete = False
        self._next_look = 0
        self._entered: Lane | None = None

    def check_declared(self, length: str) -> None:
        """Check a Content-Length. Raises PayloadTooLarge or StorageFull."""
        declared = int(length) if length.isdecimal() and length.isascii() else 0
        if declared > self._limit:
            raise self._too_large
        if self.require_room is not None:
            self.require_room(declared)

    async def receive(self) -> Message:
        """Receive the next message. If the body is refused, `refusal` keeps the error."""
        try:
            return await self._next()
        except ActographError as error:
            self.refusal = error
            raise

    async def _next(self) -> Message:
        if self._is_complete or self.memory is None:
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
            if self._seen > self._limit:
                raise self._too_large
            if self.require_room is not None and self._seen >= self._next_look:
                self._next_look = self._seen + LOOK_BYTES
                self.require_room(0)
            if self.memory is not None and self._seen > FREE_BYTES:
                self.memory.take(self._owner, self._seen - self._counted)
                self._counted = self._seen
            if self._is_complete and self.lane is not None and self._entered is None:
                await self.enter(self.lane)
        return message

    async def enter(self, lane: Lane) -> None:
        """Take a place in a lane. Raises ServiceBusy."""
        await lane.enter(self._owner)
        self._entered = lane

    def give_back(self) -> None:
        """Release the memory and the place."""
        if self._entered is not None:
            self._entered.leave(self._owner)
        if self.memory is not None and self._counted:
            self.memory.give_back(self._owner, self._counted)
