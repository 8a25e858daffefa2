"""Time and memory of a probe over the layers of a large matrix, as `actograph probe FILE.npz` runs it.

    python -m bench.probe_speed [--rows 100000] [--width 1024] [--layers 6] [--folds 5] --json results.json

The rows are random, with a planted direction whose strength grows with the layer. The command runs in a
process of its own on two threads; its time includes reading the file, all baselines and all intervals.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

from tests.support.marks import Mark, print_marks, write_result

_PROGRAM = """
import resource, sys
from actograph.cli.main import main
code = main(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, file=sys.stderr)
sys.exit(code)
"""


def write_rows(path: Path, rows: int, width: int, layers: int) -> None:
    """Write the features of each layer to an .npz file, one layer in memory at a time."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, rows)
    with zipfile.ZipFile(path, "w") as archive:
        for layer in range(layers):
            features = generator.standard_normal((rows, width), dtype=np.float32)
            features[:, 0] += labels * np.float32(layer / 2)
            with archive.open(f"features.layer_{layer}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, features, allow_pickle=False)
        for name, values in (("labels", labels), ("groups", np.arange(rows) // 2)):
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, values, allow_pickle=False)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="actograph-bench-") as folder:
        path = Path(folder) / "rows.npz"
        write_rows(path, options.rows, options.width, options.layers)
        began = time.perf_counter()
        ended = subprocess.run(
            [sys.executable, "-c", _PROGRAM, "probe", str(path), "--folds", str(options.folds)],
            env={**os.environ, "OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        seconds = time.perf_counter() - began
    peak = int(ended.stderr.splitlines()[-1])
    found = json.loads(ended.stdout).get("hooks", {})
    marks = [
        Mark(name="seconds of the probe", measured=seconds, at_most=600.0),
        Mark(name="GB of peak memory", measured=peak / 1e9, at_most=2.0),
    ]
    print_marks(marks)
    result = {
        "rows": options.rows,
        "width": options.width,
        "layers": options.layers,
        "folds": options.folds,
        "seconds": seconds,
        "peak_bytes": peak,
        "auroc": {name: one["auroc"] for name, one in found.items()},
    }
    write_result(options.json, result, marks)


if __name__ == "__main__":
    main()
