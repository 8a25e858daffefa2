"""Bags of words: the baseline that knows the text alone."""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"\w+|[^\w\s]")


def bag_of_words(texts: Sequence[str], most: int = 512) -> NDArray[np.float32]:
    """Logarithmic counts of the words that most texts contain. Returns [n, at most `most`].

    A word that every text contains once says nothing, and standardisation removes it.
    """
    bags = [Counter(_WORD.findall(text.lower())) for text in texts]
    spread: Counter[str] = Counter()
    for bag in bags:
        spread.update(bag.keys())
    ranked = sorted(spread, key=lambda word: (-spread[word], word))[:most]
    places = {word: place for place, word in enumerate(ranked)}
    found = np.zeros((len(bags), max(1, len(places))), dtype=np.float32)
    for row, bag in enumerate(bags):
        for word, count in bag.items():
            if word in places:
                found[row, places[word]] = np.log1p(count)
    return found
