"""Samples as a data frame."""

from collections.abc import Iterable
from typing import Any

from actograph.client.optional import package
from actograph.contract.resources import Sample

_COLUMNS = (
    "id", "index", "condition", "epoch", "status", "prompt", "completion", "finish_reason", "prompt_tokens",
    "generated_tokens", "seed", "attempts", "session_id", "started_at", "finished_at",
)  # fmt: skip
_ANSWERS = ("gold", "extracted")
_TIMES = ("started_at", "finished_at")


def frame(samples: Iterable[Sample]) -> Any:
    """Return a `pandas.DataFrame`, one line per sample: its fields, `error`, and one column per score.

    `gold` is the dataset's answer, `extracted` the answer that the first scorer found, None if none. Times
    are datetimes in UTC. Score columns have lm-eval's metric keys (`exact_match,strict-match`); NaN for
    samples without that score.

    Raises:
        PackageMissing: pandas is not installed.
    """
    pandas = package("pandas", "a data frame")
    lines, scores = [], dict[str, None]()
    for sample in samples:
        line = {name: getattr(sample, name) for name in _COLUMNS}
        line["status"] = str(sample.status)
        line["gold"] = sample.input.get("answer")
        line["extracted"] = next((score.answer for score in sample.scores.values()), None)
        line["error"] = sample.error.message if sample.error else None
        line.update({key: score.value for key, score in sample.scores.items()})
        scores.update(dict.fromkeys(sample.scores))
        lines.append(line)
    table = pandas.DataFrame(lines, columns=[*_COLUMNS, *_ANSWERS, "error", *scores])
    for name in _TIMES:
        table[name] = pandas.to_datetime(table[name], unit="s", utc=True)
    return table
