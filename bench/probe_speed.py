"""Seconds and memory of a cross-validated probe beside a plain scikit-learn script.

    python -m bench.probe_speed --rows 100000 --width 1024 --layers 6 --json results.json

The rows are a planted direction in normal noise, in float32; ten rows are a problem. The script is what a
user would write: grouped folds, a pipeline of scaler and logistic regression with C = 0.01, and the AUROC of
each fold. The probe also chooses C in each fold, makes its baselines with one shuffle of the labels, and
draws its intervals.
"""

import argparse
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from actograph.analysis.probe import probe
from bench.marks import Mark, print_marks, write_result

FOLDS = 5
#: for all layers of the full size, on two cores
MOST_SECONDS, MOST_BYTES = 600, 2 << 30


def planted(rows: int, width: int, seed: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Features, labels and problems."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 2, rows)
    features = generator.standard_normal((rows, width), np.float32)
    direction = generator.standard_normal(width, np.float32)
    direction *= 1.5 / np.linalg.norm(direction)
    for begin in range(0, rows, 1000):  # in blocks, so that the peak is the probe's own
        features[begin : begin + 1000] += (labels[begin : begin + 1000, None] - np.float32(0.5)) * direction
    return features, labels, np.arange(rows) // 10


def script(features: NDArray[Any], labels: NDArray[Any], problems: NDArray[Any]) -> float:
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=2000))
    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=0)
    areas = cross_val_score(model, features, labels, groups=problems, cv=folds, scoring="roc_auc")
    return float(areas.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    lines: list[dict[str, Any]] = []
    for layer in range(given.layers):
        features, labels, problems = planted(given.rows, given.width, layer)
        began = time.perf_counter()
        plain = script(features, labels, problems)
        middle = time.perf_counter()
        found = probe(features, labels, problems, folds=FOLDS, shuffles=1)
        ended = time.perf_counter()
        del features
        lines.append({"script_s": middle - began, "probe_s": ended - middle, "script_auroc": plain,
                      "probe_auroc": found.auroc, "c": list(found.chosen_c)})  # fmt: skip
        print(lines[-1], flush=True)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    seconds = sum(line["probe_s"] for line in lines)
    marks = []
    if (given.rows, given.width, given.layers) == (100_000, 1024, 6):
        marks = [
            Mark(name="seconds of all layers", measured=seconds, at_most=MOST_SECONDS),
            Mark(name="bytes at the peak", measured=peak, at_most=MOST_BYTES),
        ]
    ratios = [line["probe_s"] / line["script_s"] for line in lines]
    median, spread = statistics.median(ratios), f"{min(ratios):.2f} to {max(ratios):.2f}"
    print(f"probe / script: {median:.2f} ({spread}); peak {peak / 2**30:.2f} GiB")
    print_marks(marks)
    sizes = {"rows": given.rows, "width": given.width}
    write_result(given.json, {**sizes, "layers": lines, "ratio": median, "peak_bytes": peak}, marks)


if __name__ == "__main__":
    main()
