"""The kinds of analysis. A new kind is a file in `kinds` and a line here."""

from collections.abc import Callable, Mapping

from worker.analysis.context import Context
from worker.analysis.kinds import compare, lens, outliers, probe
from worker.analysis.results import Results

KINDS: Mapping[str, Callable[[Context], Results]] = {
    "outliers": outliers.run,
    "probe": probe.run,
    "compare": compare.run,
    "lens": lens.run,
}
