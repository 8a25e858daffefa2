"""Limits on the requests per minute of an API key, counted in Redis for all API processes together.

A token bucket holds a minute's requests and fills evenly. It is stored as one number, the time at which it
will be full again (generic cell rate algorithm, ITU-T I.371).
"""

import logging
import threading
import time
from typing import cast

import redis

from storage.broker.outage import Outage

log = logging.getLogger(__name__)

_MINUTE = 60.0
#: while Redis does not answer, each process counts for itself
_PAUSE_SECONDS = 5.0
_TIMEOUT_SECONDS = 1.0
_PREFIX = "actograph-requests:"
#: uses the clock of Redis; in microseconds, since Redis cuts a number from Lua to an integer
_TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local full = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now) + tonumber(ARGV[1])
local wait = full - now - 60000000
if wait > 0 then return math.ceil(wait) end
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', 61000)
return 0
"""


class RateLimits:
    """Safe for use from many threads."""

    def __init__(self, redis_url: str) -> None:
        """Opens nothing before the first limited request."""
        self._redis: redis.Redis = redis.Redis.from_url(
            redis_url, socket_timeout=_TIMEOUT_SECONDS, socket_connect_timeout=_TIMEOUT_SECONDS, retry=None
        )
        self._script = self._redis.register_script(_TAKE)
        self._outage = Outage(log, "each process counts requests for itself", pause_seconds=_PAUSE_SECONDS)
        self._lock = threading.Lock()
        self._full_at: dict[str, float] = {}

    def take(self, key_id: str, per_minute: int) -> float:
        """Count a request. Returns the seconds until it is allowed; 0 if it is allowed now."""
        if not self._outage.holds():
            try:
                interval = round(1_000_000 * _MINUTE / per_minute)
                wait = cast(int, self._script(keys=[_PREFIX + key_id], args=[interval]))
                return wait / 1_000_000
            except redis.RedisError as error:
                self._outage.note(error)
        return self._take_here(key_id, per_minute)

    def close(self) -> None:
        self._redis.close()

    def _take_here(self, key_id: str, per_minute: int) -> float:
        now = time.monotonic()
        with self._lock:
            full = max(self._full_at.get(key_id, now), now) + _MINUTE / per_minute
            wait = full - now - _MINUTE
            if wait > 0:
                return wait
            self._full_at[key_id] = full
            return 0.0
