from collections.abc import Iterable, Iterator

from actograph.client.event_stream import Message, Parser


def messages(lines: Iterable[str]) -> Iterator[Message]:
    parser = Parser()
    return (message for line in lines if (message := parser.feed(line)) is not None)


def test_fields_comments_and_dispatch() -> None:
    lines = [
        ": ping",
        "",
        "id: 4",
        "event: job.progress",
        'data: {"a":',
        "data: 1}",
        "",
        "data: bare",
        "",
        "data: cut",
    ]
    assert list(messages(lines)) == [
        Message(id="4", event="job.progress", data='{"a":\n1}'),
        Message(id="4", event="message", data="bare"),
    ]


def test_one_space_after_the_colon_belongs_to_the_form() -> None:
    assert next(messages(["data:  two", ""])).data == " two"
    assert next(messages(["data:none", ""])).data == "none"


def test_an_event_without_data_is_not_dispatched() -> None:
    assert list(messages(["event: a", "", "data: b", ""])) == [Message(id="", event="message", data="b")]


def test_an_id_with_nul_is_ignored() -> None:
    assert next(messages(["id: 1", "id: 2\0", "data: x", ""])).id == "1"
