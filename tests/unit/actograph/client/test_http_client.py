"""The client's transport alone: a service that is silent, and the form of event streams."""

import socket

import httpx
import pytest

from actograph.client import Client, ServiceUnreachable, transport


def test_a_silent_service_is_told_from_an_absent_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with (
            Client(url, "", timeout=0.1, retries=0) as client,
            pytest.raises(ServiceUnreachable, match="no answer"),
        ):
            client.jobs.get("job_1")


def test_data_of_server_sent_events() -> None:
    body = (
        ': ping\n\nid: 4\nevent: job.progress\ndata: {"a":\ndata: 1}\n\ndata: bare \u2028 line\n\n'
        "event: empty\n\ndata:  two spaces\n\ndata:none\n\ndata: cut"
    )
    pieces = (body.encode()[start : start + 3] for start in range(0, len(body.encode()), 3))
    response = httpx.Response(200, content=pieces)
    assert list(transport.event_data(response)) == ['{"a":\n1}', "bare \u2028 line", " two spaces", "none"]
