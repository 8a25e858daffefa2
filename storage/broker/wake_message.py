"""The message that wakes a worker, as Celery and kombu write it into Redis.

Written here rather than through them, since with its producer, bindings and declarations each one would
cost as much CPU as the whole transaction of a submit. The form is Celery's message protocol 2 in the
envelope of kombu's virtual transports; a test compares it with what the installed versions write.
https://docs.celeryq.dev/en/stable/internals/protocol.html
"""

import json
import os
import socket
import uuid
from base64 import b64encode
from typing import Any

_EMBED = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
_ORIGIN = f"gen{os.getpid()}@{socket.gethostname()}"


def list_name(queue: str, priority: int, separator: str) -> str:
    """The Redis list that holds a queue's messages of one priority; that of 0 bears the queue's own name."""
    return f"{queue}{separator}{priority}" if priority else queue


def encode(task: str, job_id: str, queue: str, priority: int) -> str:
    """A message that calls `task` with the job's id."""
    task_id = str(uuid.uuid4())
    headers: dict[str, Any] = {
        "lang": "py",
        "task": task,
        "id": task_id,
        "shadow": None,
        "eta": None,
        "expires": None,
        "group": None,
        "group_index": None,
        "retries": 0,
        "timelimit": [None, None],
        "root_id": task_id,
        "parent_id": None,
        "argsrepr": repr([job_id]),
        "kwargsrepr": "{}",
        "origin": _ORIGIN,
        "ignore_result": None,
        "replaced_task_nesting": 0,
        "stamped_headers": None,
        "stamps": {},
    }
    properties = {
        "correlation_id": task_id,
        # nobody waits for a reply
        "reply_to": "",
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "priority": priority,
        "body_encoding": "base64",
        "delivery_tag": str(uuid.uuid4()),
    }
    body = b64encode(json.dumps([[job_id], {}, _EMBED]).encode()).decode()
    return json.dumps(
        {
            "body": body,
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": headers,
            "properties": properties,
        }
    )
