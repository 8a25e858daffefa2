"""`actograph up` knows its own workers among all workers of the index."""

import os
import socket

import pytest

from actograph.contract.operations import Worker, WorkerStatus
from actograph.process_identity import pid_namespace
from actograph.stack.up import Stack


def test_a_worker_of_another_pid_namespace_is_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack.__new__(Stack)

    def has_loaded(namespace: str | None) -> bool:
        worker = Worker(
            id="wrk_1", status=WorkerStatus.READY, hostname=socket.gethostname(), pid=os.getpid(),
            pid_namespace=namespace, started_at=1, last_heartbeat_at=1,
        )  # fmt: skip
        monkeypatch.setattr(stack, "_registered", lambda: [worker])
        return stack._has_loaded(os.getsid(0))

    assert has_loaded(pid_namespace())
    assert not has_loaded("another container of this hostname")
