"""Renders templates and reads YAML of clients in child processes with limits (`sandbox_child`).

parent -> child    one line of JSON: {"call": NAME, "arguments": [...]}
child -> parent    one line of JSON: {"value": ...}, or {"error": KIND, "message": ...}
"""

import atexit
import json
import subprocess
from queue import Empty, LifoQueue
from typing import Any

from actograph import limited_process
from actograph.contract.errors import ServiceBusy

#: children of one process, started when needed
PROCESSES = 2
WAIT_SECONDS = 10.0
MAX_REPLY_BYTES = 16 << 20

_children: LifoQueue[subprocess.Popen[bytes] | None] = LifoQueue()
for _ in range(PROCESSES):
    _children.put(None)


class SandboxError(Exception):
    """A failed call; `kind` is the name of the child's exception, or `limits`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def call(name: str, *arguments: Any) -> Any:
    """Call a function of `sandbox_child`; arguments that JSON lacks are sent as text.

    Raises:
        SandboxError: the function failed, or needs too much time or memory.
        ServiceBusy: other requests use every child.
    """
    request = json.dumps({"call": name, "arguments": arguments}, default=str).encode() + b"\n"
    try:
        child = _children.get(timeout=WAIT_SECONDS)
    except Empty:
        raise ServiceBusy("other templates are being rendered; send the request again in a moment") from None
    reply = b""
    try:
        if child is None:
            child = limited_process.start("actograph.tasks.sandbox_child")
        reply = _exchange(child, request)
    finally:
        if child is not None and not reply:
            _end(child)
            child = None
        _children.put(child)
    if not reply:
        raise SandboxError("limits", "takes too much time or memory")
    answer = json.loads(reply)
    if "error" in answer:
        raise SandboxError(answer["error"], answer["message"])
    return answer["value"]


def _exchange(child: subprocess.Popen[bytes], request: bytes) -> bytes:
    """The child's reply; empty if the child has ended."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(request)
        child.stdin.flush()
    except BrokenPipeError:
        return b""
    reply = child.stdout.readline(MAX_REPLY_BYTES + 1)
    return reply if reply.endswith(b"\n") else b""


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    try:
        child.communicate()
    except BrokenPipeError:
        child.wait()


@atexit.register
def _end_all() -> None:
    while not _children.empty():
        child = _children.get_nowait()
        if child is not None:
            _end(child)
