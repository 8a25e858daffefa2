"""Word between API processes that a key was made, changed or revoked, through Redis.

Each process keeps the keys in memory for some seconds. A revoked key must not be good for so long, so who
revokes it tells the others and waits until each has said that it looks again. Where Redis is away, the few
seconds are the limit.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable

import redis
import redis.asyncio

log = logging.getLogger(__name__)

CHANNEL = "actograph-keys"
_SEEN = "actograph-keys-seen:"
#: the others have answered by then, or they do not listen
WAIT_SECONDS = 1.0
_TIMEOUT_SECONDS = 1.0
#: before a lost subscription is tried again
_PAUSE_SECONDS = 1.0
#: a connection that says nothing for so long is asked whether it still is one
_QUIET_SECONDS = 15.0
_KEEP_SECONDS = 30


def tell(redis_url: str) -> bool:
    """Have every process look at the keys anew before its next answer; whether all of them said so."""
    token = secrets.token_hex(8)
    try:
        with redis.Redis.from_url(
            redis_url,
            socket_timeout=_TIMEOUT_SECONDS + WAIT_SECONDS,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            retry=None,
        ) as client:
            listeners = int(client.publish(CHANNEL, token))
            deadline = time.monotonic() + WAIT_SECONDS
            for _ in range(listeners):
                left = deadline - time.monotonic()
                if left <= 0 or client.blpop([_SEEN + token], timeout=left) is None:
                    log.warning("an API process did not say in time that it looks at the keys anew")
                    return False
    except (redis.RedisError, OSError) as error:
        log.warning("other API processes were not told of a changed key: %s", type(error).__name__)
        return False
    return True


async def listen(redis_url: str, forget: Callable[[], None]) -> None:
    """Call `forget` whenever keys have changed, until cancelled."""
    while True:
        client = redis.asyncio.Redis.from_url(
            redis_url,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            retry=None,
            health_check_interval=_QUIET_SECONDS,
        )
        try:
            async with client, client.pubsub() as channel:
                await channel.subscribe(CHANNEL)
                while True:
                    message = await channel.get_message(timeout=_QUIET_SECONDS)
                    if message is None:
                        continue
                    # also on the confirmation: what was told before it was not heard
                    forget()
                    if message["type"] == "message":
                        seen = _SEEN + message["data"].decode()
                        await client.rpush(seen, 1)
                        await client.expire(seen, _KEEP_SECONDS)
        except (redis.RedisError, OSError) as error:
            log.debug("changes of keys are not heard, the broker is away: %s", type(error).__name__)
        await asyncio.sleep(_PAUSE_SECONDS)
