"""The nearest known name, for errors about an unknown one."""

import difflib
from collections.abc import Iterable

#: names of other tools and older scripts that look like other fields than the meant ones
OTHERWISE = {
    "sample_hidden": "features",
    "layers_extracted": "layers",
    "steering": "interventions",
    "max_new_tokens": "max_tokens",
    "generation_kwargs": "sampling",
    "n_shot": "num_fewshot",
    "num_samples": "limit",
}
#: known names that an error lists at most
LISTED = 20


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The nearest known name; None if none is near."""
    names = sorted(set(known))
    if (meant := OTHERWISE.get(name)) in names:
        return meant
    near = difflib.get_close_matches(name.replace("-", "_"), names, n=1, cutoff=0.6)
    return near[0] if near else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `. Did you mean 'x'?` for the nearest known name, else the known names; "" if there are none."""
    names = sorted(set(known))
    if near := nearest(name, names):
        return f". Did you mean {near!r}?"
    if not names:
        return ""
    more = ", ..." if len(names) > LISTED else ""
    return f". Known: {', '.join(names[:LISTED])}{more}"
