"""Measure what another client of a service notices: `python -m tests.support.bystander URL KEY MODEL`.

A program of its own, so that an attacker's threads do not slow down its clock. It lists jobs and sends short
chats, one after the other in two threads, until its standard input ends. Each answer is one line of JSON
on standard output.
"""

import json
import sys
import threading
import time

import httpx

PAUSE_SECONDS = 0.02
#: a service that is frozen for longer than this has failed in any case
TIMEOUT_SECONDS = 120.0


def main(url: str, key: str, model: str) -> None:
    """Measure until standard input ends."""
    over = threading.Event()
    chat = {"model": model, "messages": [{"role": "user", "content": "What is 2 + 2?"}], "max_tokens": 4}
    requests = {
        "list": httpx.Request("GET", f"{url}/v1/jobs?limit=20"),
        "chat": httpx.Request("POST", f"{url}/v1/chat/completions", json=chat),
    }
    threads = []
    for kind, request in requests.items():
        request.headers["Authorization"] = f"Bearer {key}"
        threads.append(threading.Thread(target=_repeat, args=(kind, request, over)))
        threads[-1].start()
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()


def _repeat(kind: str, request: httpx.Request, over: threading.Event) -> None:
    with httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False) as client:
        while not over.is_set():
            began = time.time()
            try:
                answer = client.send(request)
                fault = "" if answer.status_code == 200 else f"{answer.status_code} {answer.text[:300]}"
            except httpx.TransportError as error:
                fault = repr(error)
            line = {"kind": kind, "began": began, "seconds": time.time() - began, "fault": fault}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
            over.wait(PAUSE_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
