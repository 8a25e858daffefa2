import httpx

from actograph.client.transport import event_data


def test_data_of_server_sent_events() -> None:
    body = (
        ': ping\n\nid: 4\nevent: job.progress\ndata: {"a":\ndata: 1}\n\ndata: bare \u2028 line\n\n'
        "event: empty\n\ndata:  two spaces\n\ndata:none\n\ndata: cut"
    )
    pieces = (body.encode()[start : start + 3] for start in range(0, len(body.encode()), 3))
    response = httpx.Response(200, content=pieces)
    assert list(event_data(response)) == ['{"a":\n1}', "bare \u2028 line", " two spaces", "none"]
