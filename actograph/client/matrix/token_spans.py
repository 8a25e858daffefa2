"""Tokens of a text within a session's texts."""

from collections.abc import Sequence
from itertools import accumulate

from actograph.contract.errors import InvalidRequest, NotFound


def tokens_of_text(texts: Sequence[str], wanted: str, occurrence: int = 0) -> range:
    """Return the numbers of the tokens that contain an occurrence of a text.

    Args:
        texts: text of each token.
        wanted: the text to find; it may begin and end within a token.
        occurrence: 0 is the first, -1 the last.

    Raises:
        NotFound: the text does not occur, or not so often.
        InvalidRequest: `wanted` is empty.
    """
    if not wanted:
        raise InvalidRequest("the text to find is empty", param="text")
    whole, places = "".join(texts), list[int]()
    place = whole.find(wanted)
    while place >= 0:
        places.append(place)
        place = whole.find(wanted, place + 1)
    if not -len(places) <= occurrence < len(places):
        raise NotFound(f"the session has {len(places)} occurrences of {wanted!r}")
    start = places[occurrence]
    ends = list(accumulate(map(len, texts)))
    first = next(token for token, end in enumerate(ends) if end > start)
    last = next(token for token, end in enumerate(ends) if end >= start + len(wanted))
    return range(first, last + 1)
