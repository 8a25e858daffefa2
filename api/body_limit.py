"""A limit on request bodies that also holds where no Content-Length is sent."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from actograph.contract.errors import PayloadTooLarge
from actograph.settings import Settings
from api.errors import actograph_problem

UPLOAD_PATH = "/v1/files"
#: what a multipart body adds to the file in it
MULTIPART_OVERHEAD = 1 << 20


class BodyLimit:
    """ASGI middleware: 413 as soon as a body is known to be, or turns out to be, too large."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self._app = app
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_upload = scope["path"] == UPLOAD_PATH
        wanted = self._settings.max_upload_bytes if is_upload else self._settings.max_body_bytes
        limit = wanted + MULTIPART_OVERHEAD if is_upload else wanted
        setting = "ACTOGRAPH_MAX_UPLOAD_BYTES" if is_upload else "ACTOGRAPH_MAX_BODY_BYTES"

        def refusal() -> ASGIApp:
            large = PayloadTooLarge(f"the request body is larger than {wanted} bytes ({setting})")
            return actograph_problem(large, scope["path"])

        declared = next((v for k, v in scope["headers"] if k == b"content-length"), b"0")
        if declared.isdigit() and int(declared) > limit:
            await refusal()(scope, receive, send)
            return
        seen = 0
        started = False

        async def counted() -> Message:
            nonlocal seen
            message = await receive()
            if message["type"] == "http.request":
                seen += len(message.get("body", b""))
                if seen > limit:
                    raise PayloadTooLarge
            return message

        async def guarded(message: Message) -> None:
            # The form parser turns what `counted` raises into a 400; the answer is 413 all the same.
            nonlocal started
            if seen > limit and not started:
                if message["type"] == "http.response.start":
                    await refusal()(scope, receive, send)
                return
            started = True
            await send(message)

        await self._app(scope, counted, guarded)
