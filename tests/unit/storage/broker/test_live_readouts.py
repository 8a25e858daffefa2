"""Values of readouts as text in pieces: whatever the pieces, and whoever writes them again."""

import math

import numpy as np

from storage.broker.live_readouts import LiveReadouts, header, record

NAMES = ["mood", "a \u201cname\u201d\n"]
VALUES = [[0.1, -2.0], [math.nan, 3e38], [1e-40, 7.0]]


def test_pieces_of_any_length_are_read_and_a_second_writer_goes_on() -> None:
    records = [record(token, values) for token, values in enumerate(VALUES, start=41)]
    text = b"".join([header(NAMES), *records])
    # another batch rounds otherwise, and all places stay
    assert {len(one) for one in records} == {len(record(0, [math.inf, 0.0]))}
    due = [dict(zip(NAMES, np.float32(values).tolist(), strict=True)) for values in VALUES]
    del due[1]["mood"]  # the token has no value of it
    for length in (1, 7, len(header(NAMES)), len(text)):
        reader = LiveReadouts()
        pieces = [text[at : at + length].decode() for at in range(0, len(text), length)]
        found = [one for piece in pieces for one in reader.read(piece)]
        assert [one.token for one in found] == [41, 42, 43]
        assert [one.values for one in found] == due
