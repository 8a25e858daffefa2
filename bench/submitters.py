"""Client processes that submit jobs at a steady rate over keep-alive connections.

A slot of the timetable that comes late is sent at once: the rate does not sink because answers
are slow, as it would with clients that wait before they send the next.
"""

import http.client
import multiprocessing
import os
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

HEADERS = {"Content-Type": "application/json"}


@dataclass
class Submitted:
    """Outcomes of the requests."""

    statuses: Counter[int] = field(default_factory=Counter)
    #: of each answer, from the moment its slot came
    seconds: list[float] = field(default_factory=list)
    #: CPU time of the clients, to show that they were not what limits
    cpu_seconds: float = 0.0
    #: from the first slot to the last answer
    wall_seconds: float = 0.0


def submit(
    port: int,
    body: bytes,
    *,
    rate: float,
    seconds: float,
    processes: int = 2,
    connections: int = 8,
) -> Submitted:
    """Send `rate` x `seconds` requests; each process has so many connections. Status 0: one that broke."""
    context = multiprocessing.get_context("spawn")
    count, starts_at = int(rate * seconds), time.time() + 1.0
    with context.Pool(processes) as pool:
        shares = [
            _Share(port, body, rate, starts_at, range(p, count, processes), connections)
            for p in range(processes)
        ]
        parts = pool.map(_client, shares)
    whole = Submitted()
    for part in parts:
        whole.statuses.update(part.statuses)
        whole.seconds.extend(part.seconds)
        whole.cpu_seconds += part.cpu_seconds
        whole.wall_seconds = max(whole.wall_seconds, part.wall_seconds)
    return whole


class _Share(NamedTuple):
    """Work of one process."""

    port: int
    body: bytes
    rate: float
    starts_at: float
    slots: range
    connections: int


def _client(share: _Share) -> Submitted:
    found, lock = Submitted(), threading.Lock()
    slots = iter(share.slots)

    def work() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", share.port, timeout=60)
        connection.connect()
        while True:
            with lock:
                slot = next(slots, None)
            if slot is None:
                break
            due = share.starts_at + slot / share.rate
            time.sleep(max(0.0, due - time.time()))
            try:
                connection.request("POST", "/v1/jobs", share.body, HEADERS)
                answer = connection.getresponse()
                answer.read()
                status = answer.status
            except (OSError, http.client.HTTPException):
                connection.close()
                status = 0
            with lock:
                found.statuses[status] += 1
                found.seconds.append(time.time() - due)
        connection.close()

    threads = [threading.Thread(target=work) for _ in range(share.connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = os.times()
    found.cpu_seconds, found.wall_seconds = used.user + used.system, time.time() - share.starts_at
    return found
